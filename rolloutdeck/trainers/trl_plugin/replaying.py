"""What a replay of TRL's steps needs, wherever the pinned rows come from."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from rolloutdeck.errors import Unfit
from rolloutdeck.trainers.trl_plugin import kept
from rolloutdeck.trainers.trl_plugin.callback import RolloutdeckCallback

Batch = dict[str, Any]


class Calls:
    """Counts the generations of a step."""

    def __init__(self) -> None:
        self._at, self._call = -1, 0

    def next(self, trainer: Any) -> tuple[int, int]:
        """The step that generates now, and which of its generations this is, from 0."""
        step = int(trainer.state.global_step) + 1  # counted up only after the step
        self._call, self._at = (self._call + 1 if step == self._at else 0), step
        return step, self._call


def callback_of(trainer: Any) -> RolloutdeckCallback | None:
    found = (one for one in trainer.callback_handler.callbacks if isinstance(one, RolloutdeckCallback))
    return next(found, None)


def may_replay(trainer: Any) -> None:
    """Raises Unfit with the reason why this trainer replays nothing."""
    if getattr(trainer, "tools", None):
        raise Unfit("the trainer has tools, which would be called again")
    if int(trainer.accelerator.num_processes) > 1:
        raise Unfit("the trainer has several processes, and steps are kept and replayed by one")


def fits(rows: Sequence[kept.Row], prompts: Sequence[Any]) -> None:
    """Raises Unfit unless these are the answers to these prompts, in their order."""
    if len(rows) != len(prompts):
        raise Unfit(f"rows: {len(rows)} pinned, {len(prompts)} asked for")
    pairs = zip(kept.texts(list(rows)), map(kept.text_of, prompts), strict=True)
    wrong = sum(pinned != asked for pinned, asked in pairs)
    if wrong:
        raise Unfit(f"the prompts of {wrong} of {len(rows)} rows are not those that were answered")


def batch_of(rows: Sequence[kept.Row]) -> Batch:
    """What TRL takes from a `rollout_func`."""
    made: Batch = {key: [row[key] for row in rows] for key in ("prompt_ids", "completion_ids")}
    for key in ("logprobs", "env_mask"):
        if all(row.get(key) is not None for row in rows):
            made[key] = [row[key] for row in rows]
    return {"logprobs": None, **made}


def generated(trainer: Any, prompts: Sequence[Any]) -> Batch:
    """What the trainer generates without a `rollout_func`: TRL has no name for it that is public."""
    prompt_ids, images, fields = trainer._tokenize_prompts(prompts)
    answers = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    known = {"prompt_ids": prompt_ids, "images": images, "multimodal_fields": fields, "num_generations": answers}
    asked = inspect.signature(trainer._generate_single_turn).parameters
    ids, logprobs = trainer._generate_single_turn(**{name: known[name] for name in known if name in asked})
    return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logprobs}
