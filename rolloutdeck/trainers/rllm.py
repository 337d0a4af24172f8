"""Episodes that rLLM writes, one file each. Source: `EpisodeLogger` in rllm/utils/episode_logger.py, and
`EvalEpisodeStore` of `rllm eval` in rllm/eval/episode_store.py, rllm-org/rllm 9beb6e0f."""

from __future__ import annotations

import re
from pathlib import PurePath

from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles, assume_split, match_step

_FOLDER = re.compile(r"(train|val)_step_(\d{1,18})_epoch_\d+\Z")
_EVAL_FILE = re.compile(r"episode_\d{6}_.*\.json\Z")
_EVAL_START = re.compile(rb'\s*\{\s*"id"\s*:\s*"[^"]*"\s*,\s*"task"\s*:')


def _parse_split(path: PurePath) -> str:
    match = _FOLDER.match(path.parent.name)
    if not match:
        return "eval" if _EVAL_FILE.match(path.name) else ""
    return "eval" if match[1] == "val" else "train"


def _is_episode(name: str, head: FileHead) -> bool:
    return b'"episode_id"' in head.start or bool(_EVAL_FILE.match(name) and _EVAL_START.match(head.start))


FILES = TrainerFiles(
    name="rllm",
    kinds=(
        FileKind(
            "rllm-episode", "an episode", "episode_*.json", _is_episode,
            step=lambda path: match_step(_FOLDER, path.parent.name), split=_parse_split, stepless=True,
        ),
    ),
    guess_split=assume_split("train", "no folder is named as a validation"),
    others={"batch_summary.json": "summaries of a step's episodes"},
)  # fmt: skip
