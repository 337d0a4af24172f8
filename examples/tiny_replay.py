"""Replay for the tiny training: stores steps as JSON, registers them with Rolloutdeck and loads pinned steps."""

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


class ReplayableSteps:
    """Stores and loads the steps of a run.

    rows, prompts, lengths (of a prompt and a response) and letters are facts: a pinned step fits if they are equal.
    """

    def __init__(
        self, run: Any, folder: Path, rows: int, prompts: int, lengths: tuple[int, int], letters: str, plan: str = ""
    ) -> None:
        self.run, self.folder = run, folder / run.uid
        self.facts = {
            "role": "rollout", "serialisation": "json", "format": FORMAT, "rows": rows, "prompts": prompts,
            "samples_per_prompt": rows // prompts, "max_prompt_length": lengths[0], "max_response_length": lengths[1],
            "parameter_sync_step": 1, "tokenizer": hashlib.sha256(letters.encode()).hexdigest(),
        }  # fmt: skip
        self.plan = run.replay_plan(plan, facts=self.facts)
        count = len(self.plan.entries)
        print(f"Replay plan {self.plan.name}: {count or 'no'} pinned step{'' if count == 1 else 's'}.", flush=True)

    def send_tokenizer(self, vocabulary: dict[str, int], special: Sequence[str]) -> None:
        """Writes and uploads a `tokenizer.json` of the tokenizers library, in which each letter is a token."""
        added = [{"id": vocabulary[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                  "normalized": False, "special": True} for token in special]  # fmt: skip
        content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                   "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
                   "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": special[0]}}  # fmt: skip
        folder = self.folder / "tokenizer"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(content))
        self.run.log_artifact(folder, 0, role="tokenizer", manifest={"files": ["tokenizer.json"]}, send_now=True)

    def store(self, step: int, prompts: Sequence[str], responses: Ids) -> None:
        """Writes a step and registers it. It has only a few kilobytes, so it is uploaded now, not when it is pinned."""
        folder = self.folder / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        content = {"format": FORMAT, "step": step, "prompts": list(prompts), "responses": responses}
        (folder / FILE).write_text(json.dumps(content))
        self.run.log_artifact(folder, step, manifest={"files": [FILE], "facts": self.facts}, send_now=True)

    def load_replayed(self, step: int, prompts: Sequence[str]) -> Ids | None:
        """Returns the pinned responses for this step; None if the step generates."""
        entry = self.plan.resolve(step)
        if entry is None:
            return None
        started = time.perf_counter()
        try:
            check_pinned_step(self.plan, entry, "a step of this training")
            with download_pinned_file(entry, entry.artifacts[0], FILE) as path:
                content = json.loads(path.read_text())
            if content["prompts"] != list(prompts):
                raise NotReplayableError("its prompts differ from those of this step (they return every 20 steps)")
        except Exception as error:  # the training continues, unless the plan stops at a mismatch
            report_not_replayed(self.run, self.plan, entry, step, error)
            return None
        seconds = time.perf_counter() - started
        self.run.report_replay(step, "hit", pin=entry.pin, rows=len(prompts), seconds=seconds, source=str(entry))
        return list(content["responses"])
