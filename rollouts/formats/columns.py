"""Which column of a table is which part of a sample: as somebody told it, as a trainer is known to name it, else by
the names that people use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rolloutdeck.wire import PRESETS, SAMPLE_KEYS
from rollouts.errors import UnreadableDump

# Of each part, the names that are taken for it where nobody said anything, the likeliest first.
USUAL: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "query", "input", "instruction", "problem", "prompt_text", "queries"),
    "response": ("response", "completion", "output", "generation", "generated_text", "model_response", "response_text",
                 "prediction", "responses", "completions", "text"),
    "score": ("score", "reward", "total_reward", "episode_reward", "rewards", "scores"),
    "ground_truth": ("ground_truth", "label", "gts", "gold", "target", "reference", "solution", "labels", "answer"),
    "step": ("step", "global_step", "training_step", "train_step", "iteration", "rollout_id"),
    "group": ("group", "group_id", "uid", "prompt_id", "prompt_idx", "problem_id", "example_id", "task_id"),
    "index": ("index", "sample_idx", "sample_index", "sample_id"),
    "trajectory": ("trajectory", "trajectory_id", "traj_id"),
    "turn": ("turn",),
    "messages": ("messages", "conversation", "conversations"),
    "data_source": ("data_source", "dataset", "env_name", "domain", "source"),
    "finish_reason": ("finish_reason", "stop_reason"),
    "truncated": ("truncated", "is_truncated"),
    "prompt_ids": ("prompt_ids", "prompt_tokens", "prompt_token_ids"),
    "response_ids": ("response_ids", "response_tokens", "completion_ids", "response_token_ids", "output_ids"),
    "response_mask": ("response_mask", "loss_mask"),
    "logprobs": ("logprobs", "rollout_log_probs"),
    "advantages": ("advantages", "advantage"),
    "policy_version": ("policy_version",),
}  # fmt: skip
REWARDS = "rewards."  # before the name of a part of the reward: `rewards.format=format_score`
OURS = tuple(key for key in SAMPLE_KEYS if key != "rewards")  # which a table may have as one number, too
PARTS = frozenset((*SAMPLE_KEYS, "step"))


def told(text: str) -> dict[str, str]:
    """{part: column} of `prompt=question,response=answer`, or of a preset's name. Raises UnreadableDump."""
    if text in PRESETS:
        return dict(PRESETS[text])
    found = {}
    for pair in filter(None, (one.strip() for one in text.split(","))):
        part, sign, column = (word.strip() for word in pair.partition("="))
        if not sign or not column or not (part in PARTS or part.startswith(REWARDS)):
            raise UnreadableDump(
                f"`{pair[:80]}` maps no column: say PART=COLUMN with a part of {', '.join(sorted(PARTS))} or "
                f"{REWARDS}NAME, or one of {', '.join(PRESETS)}."
            )
        found[part] = column
    return found


def mapping(columns: Iterable[str], text: str = "") -> dict[str, str]:
    """{part: column} of a table with these columns. Raises UnreadableDump where it holds no generation, or lacks a
    column that was told."""
    names = list(columns)
    found = told(text)
    if missing := [column for column in found.values() if column not in names and text not in PRESETS]:
        raise UnreadableDump(f"It has no column `{missing[0][:80]}`; it has {listed(names)}.")
    found = {part: column for part, column in found.items() if column in names}
    found |= {key: key for key in OURS if key in names and key not in found and key not in found.values()}
    lower = {name.lower(): name for name in reversed(names)}
    for part, usual in USUAL.items():
        taken = set(found.values())
        likely = (lower[name] for name in usual if name in lower and lower[name] not in taken)
        if part not in found and (column := next(likely, "")):
            found[part] = column
    if "rewards" in names and "rewards" not in found.values():
        found["rewards"] = "rewards"
    if not is_generation(found):
        raise UnreadableDump(
            f"No column of it is known to hold what the model wrote; it has {listed(names)}. Say which with "
            "`--map prompt=COLUMN,response=COLUMN`."
        )
    return found


def looks_generated(found: Mapping[str, str]) -> bool:
    """Whether a table that nobody spoke of is one of generations: a text alone is a data set."""
    return is_generation(found) and any(part in found for part in ("prompt", "score", "advantages", "prompt_ids"))


def is_generation(found: Mapping[str, str]) -> bool:
    return any(part in found for part in ("response", "response_ids", "messages"))


def listed(names: list[str], most: int = 20) -> str:
    shown = ", ".join(f"`{name[:40]}`" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "none"
