"""`replaying.py` where something of ours breaks. Arguments: those of that script; BREAKS says what: `raise`, or `wait`
until somebody has done with the server what is to be done, right before a pin is fetched."""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from rolloutdeck.trainers.slime.plugin import replay

FOLDER = Path(sys.argv[1])
brought = replay.load_pinned_samples


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a mistake of ours")


def wait(*args: Any, **named: Any) -> Any:
    (FOLDER / "asked").touch()
    end = time.monotonic() + 100
    while not (FOLDER / "done").exists() and time.monotonic() < end:
        time.sleep(0.05)
    return brought(*args, **named)


if os.environ["BREAKS"] == "raise":
    replay.load_session_plan = fail
else:
    replay.load_pinned_samples = wait
runpy.run_path(str(Path(__file__).with_name("replaying.py")), run_name="__main__")
