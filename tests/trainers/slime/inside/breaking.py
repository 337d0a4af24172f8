"""`replaying.py` with a failure of the plug-in. Arguments: those of that script; BREAKS says which failure: `raise`, or
`wait` until the test has stopped the server, right before a pin is fetched."""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from rolloutdeck.trainers.slime.plugin import replay

FOLDER = Path(sys.argv[1])
original_load = replay.load_pinned_samples


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a mistake of ours")


def wait_and_load(*args: Any, **named: Any) -> Any:
    (FOLDER / "asked").touch()
    end = time.monotonic() + 100
    while not (FOLDER / "done").exists() and time.monotonic() < end:
        time.sleep(0.05)
    return original_load(*args, **named)


if os.environ["BREAKS"] == "raise":
    replay.load_session_plan = fail
else:
    replay.load_pinned_samples = wait_and_load
runpy.run_path(str(Path(__file__).with_name("replaying.py")), run_name="__main__")
