"""The tools of a trainer of TRL, whose calls and results belong to a step.

Behind the first turn, whoever made it, the trainer calls its tools and generates on, in `_tool_call_loop` (TRL 1.9.2 to
1.16.0, `trainer/grpo_trainer.py`). A step that is replayed has all turns already: there the loop gives what it gave
when the step was generated, once, and no tool is called. What tools changed outside of the answers is not made again,
so a trainer with environments, whose state its rewards may read, replays nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.trainers.trl.plugin.rows import ToolUse, TrlRow
from rolloutdeck.trainers.trl.plugin.step_files import StoredGeneration

LOOP = "_tool_call_loop"
PER_ROW, IN_VAIN = "tools/call_frequency", "tools/failure_frequency"
ENVIRONMENTS = "the trainer has environments, whose state a replay does not make again"


def names_of(trainer: Any) -> tuple[str, ...]:
    """In the order in which the prompts tell of them."""
    return tuple(str(getattr(one, "__name__", type(one).__name__)) for one in getattr(trainer, "tools", None) or ())


def has_environments(trainer: Any) -> bool:
    return bool(getattr(trainer, "environment_factories", None) or getattr(trainer, "environments", None))


def count_tool_calls(trainer: Any, split: str, rows: int) -> ToolUse | None:
    """What the trainer's own figures say of the generation that it has just made, of so many rows of all processes;
    None where it has neither tools nor environments."""
    names, environments = names_of(trainer), has_environments(trainer)
    if not names and not environments:
        return None
    figures = getattr(trainer, "_metrics", {}).get(split) or {}
    shares = (figures.get(name) or [0.0] for name in (PER_ROW, IN_VAIN))
    often, failed = (float(values[-1]) for values in shares)
    calls = round(often * rows)
    return ToolUse(names, calls, round(failed * calls), environments)


def check_tools(trainer: Any, found: StoredGeneration) -> None:
    """Raises NotReplayableError with the reason why this trainer does not replay it."""
    if has_environments(trainer):
        raise NotReplayableError(ENVIRONMENTS)
    pinned, asked = found.tools.names if found.tools else (), names_of(trainer)
    if pinned != asked:
        raise NotReplayableError(f"tools: {', '.join(pinned) or 'none'} pinned, {', '.join(asked) or 'none'} asked for")
    if asked and not callable(getattr(trainer, LOOP, None)):
        raise NotReplayableError(f"this trainer has no {LOOP}, and would call its tools again")


def replay_tool_calls(trainer: Any, rows: Sequence[TrlRow], told: ToolUse) -> None:
    """The next time that the trainer would call tools it is given what the pinned rows say instead."""
    had = vars(trainer).get(LOOP)

    def loop(prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, logprobs: Any, *_: Any) -> Any:
        if had is None:
            delattr(trainer, LOOP)
        else:
            setattr(trainer, LOOP, had)
        masks, said = [row["env_mask"] for row in rows], [row["completion"] for row in rows]
        return masks, said, completion_ids, logprobs, told.calls, told.failures, [[] for _ in rows]

    setattr(trainer, LOOP, loop)
