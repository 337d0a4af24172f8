"""Records what a version of the client sends: python -m scripts.record_requests 0.1.0 --source FOLDER

FOLDER has the `rolloutdeck` package of that version (`git archive COMMIT rolloutdeck | tar -x -C FOLDER`). Writes
tests/data/versions/<version>.requests.json, which tests/dashboard/test_wire_versions.py sends to the current server.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.rolloutdeck.support.fake_server import Handler, Receiver
from tests.support.data_folder import DATA

TRAINING = """
import rolloutdeck
run = rolloutdeck.init(project="math", name="recorded", config={"lr": 1e-6})
for step in (1, 2):
    run.log({"critic/score/mean": step / 2}, step=step)
    rows = [{"prompt": f"{n}+{n}?", "response": str(2 * n), "score": 1.0, "group": str(n)} for n in range(3)]
    run.log_samples(rows, step=step, split="train")
run.log_samples([{"prompt": "9+9?", "response": "18", "score": 1.0}], step=2, split="eval")
run.finish()
"""


class Recorder(Receiver):
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        super().__init__()

    def handler(self) -> type[Handler]:
        recorder = self

        class Recording(Handler):
            def body(self) -> bytes:
                body = super().body()
                names = [name for name in self.headers if name.lower() not in ("host", "authorization", "user-agent")]
                recorder.requests.append(
                    {
                        "method": self.command,
                        "path": self.path.removeprefix("/a/b"),
                        "headers": {name: self.headers[name] for name in names},
                        "body": base64.b64encode(body).decode(),
                    }
                )
                return body

        return Recording


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("--source", type=Path, default=Path.cwd())
    arguments = parser.parse_args()
    recorder = Recorder()
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUTDECK_")}
    with tempfile.TemporaryDirectory() as spool:
        named = {"URL": recorder.url, "TOKEN": "recorded", "SPOOL": spool, "ATTEMPT": "first", "CONTEXT": "off"}
        environment = {
            **plain,
            **{f"ROLLOUTDECK_{name}": value for name, value in named.items()},
            "PYTHONPATH": str(arguments.source.absolute()),
            "PYTHONSAFEPATH": "1",
        }
        subprocess.run([sys.executable, "-c", TRAINING], env=environment, cwd=spool, check=True, timeout=120)
    recorder.down()
    target = DATA / "versions" / f"{arguments.version}.requests.json"
    target.write_text(json.dumps(recorder.requests, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
