"""Tools of a TRL trainer: their calls and results belong to a step.

After the first turn the trainer calls its tools and continues to generate, in `_tool_call_loop` (TRL 1.9.2 to 1.16.0,
`trainer/grpo_trainer.py`). A replayed step already has all turns: there the loop returns once what it returned when the
step was generated, and no tool is called. Effects of tools outside of the answers are not repeated, so a trainer with
environments, whose state its rewards may read, replays nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.trainers.trl.plugin.rows import ToolUse, TrlRow
from rolloutdeck.trainers.trl.plugin.step_files import StoredGeneration
from rolloutdeck.trainers.trl.plugin.version import is_older_than

TOOL_LOOP = "_tool_call_loop"
CALL_METRIC, FAILURE_METRIC = "tools/call_frequency", "tools/failure_frequency"
ENVIRONMENTS = "the trainer has environments, whose state a replay does not restore"


def get_tool_names(trainer: Any) -> tuple[str, ...]:
    """Returns the names of the trainer's tools, in the order of the prompts."""
    return tuple(str(getattr(tool, "__name__", type(tool).__name__)) for tool in getattr(trainer, "tools", None) or ())


def build_tool_schemas(trainer: Any) -> list[dict[str, Any]]:
    """Returns the tools as the chat template shows them to the model; [] if there are none or one cannot be described.

    `apply_chat_template` of transformers describes functions in the same way.
    """
    tools = list(getattr(trainer, "tools", None) or ())
    if not tools:
        return []
    try:
        from transformers.utils import get_json_schema

        return [dict(tool) if isinstance(tool, Mapping) else get_json_schema(tool) for tool in tools]
    except Exception:  # a function without type hints or documentation
        return []


def has_environments(trainer: Any) -> bool:
    return bool(getattr(trainer, "environment_factories", None) or getattr(trainer, "environments", None))


def count_tool_calls(trainer: Any, split: str, rows: int) -> ToolUse | None:
    """Returns the tool use of the last generation, from the trainer's metrics; `rows` are those of all processes.

    None if the trainer has neither tools nor environments.
    """
    names, environments = get_tool_names(trainer), has_environments(trainer)
    if not names and not environments:
        return None
    metrics = getattr(trainer, "_metrics", {}).get(split) or {}
    values_by_metric = (metrics.get(name) or [0.0] for name in (CALL_METRIC, FAILURE_METRIC))
    calls_per_row, failure_share = (float(values[-1]) for values in values_by_metric)
    calls = round(calls_per_row * rows)
    return ToolUse(names, calls, round(failure_share * calls), environments)


def check_tools(trainer: Any, generation: StoredGeneration) -> None:
    """Raises NotReplayableError with the reason if this trainer can't replay the generation."""
    if has_environments(trainer):
        raise NotReplayableError(ENVIRONMENTS)
    pinned, current = generation.tools.names if generation.tools else (), get_tool_names(trainer)
    if pinned != current:
        pinned_names, current_names = (", ".join(names) or "none" for names in (pinned, current))
        raise NotReplayableError(f"tools: {pinned_names} pinned, {current_names} requested")
    if current and not callable(getattr(trainer, TOOL_LOOP, None)):
        raise NotReplayableError(f"this trainer has no {TOOL_LOOP}, and would call its tools again")
    if current and is_older_than(1, 1):  # its loop returns other values
        raise NotReplayableError("a step with tools needs TRL 1.1 or newer")


def replay_tool_calls(trainer: Any, rows: Sequence[TrlRow], tool_use: ToolUse) -> None:
    """Makes the next call of the trainer's tool loop return the results of the pinned rows."""
    original = vars(trainer).get(TOOL_LOOP)

    def loop(prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, logprobs: Any, *_: Any) -> Any:
        if original is None:
            delattr(trainer, TOOL_LOOP)
        else:
            setattr(trainer, TOOL_LOOP, original)
        masks, answers = [row["env_mask"] for row in rows], [row["completion"] for row in rows]
        return masks, answers, completion_ids, logprobs, tool_use.calls, tool_use.failures, [[] for _ in rows]

    setattr(trainer, TOOL_LOOP, loop)
