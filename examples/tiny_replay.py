"""The steps of the tiny training: kept as plain JSON, told to Rolloutdeck, fetched where a plan says so."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.trainers.common.pinned_step import check_pinned_step, download_pinned_file, report_not_replayed

FORMAT, FILE = "tiny-grpo", "responses.json"

Ids = list[list[int]]


class Steps:
    """`rows`, `prompts`, `lengths` (of a prompt and a response) and `letters` say what a step must be to fit here."""

    def __init__(self, run: Any, folder: Path, rows: int, prompts: int, lengths: tuple[int, int], letters: str) -> None:
        self.run, self.folder = run, folder / run.uid
        self.facts = {
            "role": "rollout", "serialisation": "json", "format": FORMAT, "rows": rows, "prompts": prompts,
            "samples_per_prompt": rows // prompts, "max_prompt_length": lengths[0], "max_response_length": lengths[1],
            "parameter_sync_step": 1, "tokenizer": hashlib.sha256(letters.encode()).hexdigest(),
        }  # fmt: skip
        self.plan = run.replay_plan(facts=self.facts)

    def keep(self, step: int, prompts: Sequence[str], responses: Ids) -> None:
        """Writes a step and tells of it. It has some kilobytes, so it goes at once and does not wait for a pin."""
        place = self.folder / f"step_{step}"
        place.mkdir(parents=True, exist_ok=True)
        told = {"format": FORMAT, "step": step, "prompts": list(prompts), "responses": responses}
        (place / FILE).write_text(json.dumps(told))
        self.run.log_artifact(place, step, manifest={"files": [FILE], "facts": self.facts}, send_now=True)

    def replayed(self, step: int, prompts: Sequence[str]) -> Ids | None:
        """The responses that are pinned for this step; None where it is generated."""
        entry = self.plan.resolve(step)
        if entry is None:
            return None
        began = time.perf_counter()
        try:
            check_pinned_step(self.plan, entry, "a step of this training")
            with download_pinned_file(entry, entry.artifacts[0], FILE) as path:
                told = json.loads(path.read_text())
            if told["prompts"] != list(prompts):
                raise NotReplayableError("it answers other prompts than those of this step")
        except Exception as error:  # the training goes on, unless the plan says to stop
            report_not_replayed(self.run, self.plan, entry, step, error)
            return None
        seconds = time.perf_counter() - began
        self.run.report_replay(step, "hit", pin=entry.pin, rows=len(prompts), seconds=seconds)
        return list(told["responses"])
