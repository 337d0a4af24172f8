"""Records what "Load demo data" shows: python -m scripts.record_demo rollouts/demo/recording.zip

Runs the trainings of examples/tiny_demo.py without a server and stores some of their samples. Needs torch. Takes a few
minutes.
"""

from __future__ import annotations

import json
import sys
import zipfile
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import rolloutdeck

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

STEPS, EVERY, GROUPS = 240, 10, 16  # of a training; the steps that are stored; groups of 8 samples per stored step
PINNED = 40
RUNS = {
    "tiny-grpo": ["--steps", str(STEPS)],
    "tiny-grpo-any": ["--steps", str(STEPS), "--grader", "any"],
    "tiny-grpo-replay": ["--steps", str(PINNED + 3 * EVERY), "--lr", "1e-3"],
}


class RecordedRun:
    """Stands for the run of `rolloutdeck.init`: writes what it gets to the archive."""

    def __init__(self, archive: zipfile.ZipFile, name: str, config: dict[str, Any]) -> None:
        self.archive, self.name, self.uid = archive, name, name
        self.metrics: list[str] = []
        self.write("config.json", json.dumps(config))

    def write(self, name: str, text: str) -> None:
        self.archive.writestr(f"{self.name}/{name}", text)

    def log(self, metrics: dict[str, float], step: int) -> None:
        values = {key: round(value, 5) for key, value in metrics.items()}
        self.metrics.append(json.dumps({"step": step, **values}))

    def log_samples(self, rows: list[dict[str, Any]], step: int, split: str) -> None:
        if step % EVERY and step != PINNED:
            return
        names = list(dict.fromkeys(row["group"] for row in rows))[:GROUPS]
        chosen = [shorten(row) for row in rows if row["group"] in names]
        self.write(f"{split}/{step}.jsonl", "".join(json.dumps(row) + "\n" for row in chosen))

    def log_artifact(self, folder: Path, step: int, role: str = "rollout", **_: Any) -> None:
        if role == "tokenizer":
            self.write("tokenizer.json", (folder / "tokenizer.json").read_text())

    def replay_plan(self, facts: dict[str, Any]) -> Any:
        self.write("facts.json", json.dumps(facts))

    def finish(self) -> None:
        self.write("metrics.jsonl", "\n".join(self.metrics))


def open_recorded_run(archive: zipfile.ZipFile, *, name: str, config: dict[str, Any], **_: Any) -> RecordedRun:
    return RecordedRun(archive, name, config)


def shorten(row: dict[str, Any]) -> dict[str, Any]:
    arrays = {key: [round(number, 3) for number in row[key]] for key in ("logprobs", "advantages") if key in row}
    return {**row, **arrays, "score": round(row["score"], 3)}


def main() -> None:
    import tiny_grpo
    import tiny_replay

    pinned: dict[str, list[list[int]]] = {}

    class Steps(tiny_replay.ReplayableSteps):
        def __init__(self, run: Any, *args: Any) -> None:
            super().__init__(run, *args)
            self.is_replaying = run.name.endswith("-replay")

        def store(self, step: int, prompts: Any, responses: Any) -> None:
            if self.run.name == "tiny-grpo" and step == PINNED:
                pinned["responses"] = responses
                content = {"format": tiny_replay.FORMAT, "step": step, "prompts": list(prompts), "responses": responses}
                self.run.write(tiny_replay.FILE, json.dumps(content))

        def load_replayed(self, step: int, prompts: Any) -> Any:
            return pinned["responses"] if self.is_replaying and step == PINNED else None

    packed = zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED, compresslevel=9)
    with packed as archive, TemporaryDirectory() as folder:
        for name, args in RUNS.items():
            opened = mock.patch.object(rolloutdeck, "init", partial(open_recorded_run, archive))
            given = ["tiny_grpo.py", "--name", name, "--keep", folder, *args]
            with opened, mock.patch.object(tiny_grpo, "ReplayableSteps", Steps), mock.patch.object(sys, "argv", given):
                tiny_grpo.main()


if __name__ == "__main__":
    main()
