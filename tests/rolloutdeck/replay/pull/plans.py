"""Helpers that create pins and plans, and hash the files that `pull` wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User

from rolloutdeck.replay.folder import PULL_MANIFEST
from rollouts.models import Pin, Run
from rollouts.pins import artifact_check, pins
from rollouts.replay import plans
from tests.rollouts.support.artifacts import encode_meta, register_artifact, upload_files
from tests.rollouts.support.verl_batches import V0, read_files

FACTS = {"prompts": 8, "rows": 32, "samples_per_prompt": 4, "max_prompt_length": 128, "max_response_length": 256}
CONFIG = {
    "trainer": {"experiment_name": "grpo-2", "project_name": "math", "use_v1": False},
    "actor_rollout_ref": {"rollout": {"n": 4}},
    "data": {"max_prompt_length": 128, "max_response_length": 256, "train_batch_size": 8},
}
TREE = "grpo-2_math/GBS8_N4_in128_out256"
RunCommand = Callable[..., int]


def create_pin(run: Run, step: int, by: User, path: Path = V0, role: str = "rollout", **facts: Any) -> Pin:
    """Uploads the files of `path` as a step and pins it. Each step has its own `meta.json`, and so its own artifact."""
    kind = "feed_index" if role == "async_rollout" else "global_step"
    files = {
        name: data if name.endswith(("dp", "pt")) else encode_meta(step) for name, data in read_files(path).items()
    }
    values = {"role": role, "step_kind": kind, "facts": {"role": role, **FACTS, **facts}}
    artifact_check.check_artifact(upload_files(register_artifact(run, step, files, **values), files).pk)
    return pins.pin_step(run, step, by, step_kind=kind)[0]


def save_plan(by: User, *entries: tuple[Pin, int], action: str = "cache", **more: Any) -> None:
    project = entries[0][0].project
    last = plans.find_current_revision(project)
    plans.save_plan(project, "default", by, if_match=last.number if last else 0, action=action, entries=entries, **more)


def hash_files(into: Path) -> dict[str, str]:
    """Path below the folder -> sha256, without the manifest of `pull`."""
    files = [path for path in into.rglob("*") if path.is_file() and path.name != PULL_MANIFEST]
    return {str(path.relative_to(into)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def build_expected_hashes(path: Path, *folders: str) -> dict[str, str]:
    """What `hash_files` returns if each of these folders has the files of step 1."""
    files = {name: data if name.endswith(("dp", "pt")) else encode_meta(1) for name, data in read_files(path).items()}
    return {f"{folder}/{name}": hashlib.sha256(data).hexdigest() for folder in folders for name, data in files.items()}
