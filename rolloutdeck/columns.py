"""Which column of a table is which part of a sample, by the names that people and trainers use. Standard library only.

Both sides go by it: what is taken from a folder is what the server can read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rolloutdeck.wire import SAMPLE_KEYS

# Tables that some trainers write, or that are written of their runs; `--map` takes these names.
PRESETS: dict[str, dict[str, str]] = {
    "areal": {
        "prompt": "prompt", "response": "completion", "score": "reward", "group": "task_id", "index": "sample_idx",
        "policy_version": "tail_version",
    },
    "open-instruct": {
        "prompt_ids": "prompt_tokens", "response_ids": "response_tokens", "score": "reward", "advantages": "advantage",
        "group": "prompt_idx", "index": "sample_idx", "data_source": "dataset", "step": "step",
        "ground_truth": "ground_truth", "finish_reason": "finish_reason", "logprobs": "logprobs",
    },
    "openrlhf": {"response": "text", "score": "reward", "step": "global_step"},
}  # fmt: skip
# Of each part, the names that are taken for it where nobody said anything, the likeliest first. `answer` is none for a
# response: in data sets it is the expected one.
USUAL: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "query", "input", "instruction", "problem", "prompt_text", "queries"),
    "response": ("response", "completion", "output", "generation", "generated_text", "model_response", "response_text",
                 "prediction", "model_output", "responses", "completions", "text"),
    "score": ("score", "reward", "total_reward", "episode_reward", "rewards", "scores", "is_correct"),
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
OURS = tuple(key for key in SAMPLE_KEYS if key != "rewards")  # which a table may have as one number, too
REWARDS = "rewards."  # before the name of a part of the reward: `rewards.format=format_score`
PARTS = frozenset((*SAMPLE_KEYS, "step"))


def told(text: str) -> dict[str, str]:
    """{part: column} of `prompt=question,response=answer`, or of a preset's name. Raises ValueError."""
    if text in PRESETS:
        return dict(PRESETS[text])
    found = {}
    for pair in filter(None, (one.strip() for one in text.split(","))):
        part, sign, column = (word.strip() for word in pair.partition("="))
        if not sign or not column or not (part in PARTS or part.startswith(REWARDS)):
            raise ValueError(
                f"`{pair[:80]}` maps no column: say PART=COLUMN with a part of {', '.join(sorted(PARTS))} or "
                f"{REWARDS}NAME, or one of {', '.join(PRESETS)}."
            )
        found[part] = column
    return found


def usual_spelling(name: str) -> str:
    """`Global Step` and `global-step` are `global_step`."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def guessed(names: Iterable[str], found: Mapping[str, str]) -> dict[str, str]:
    """{part: column} of a table with these columns: as it was `found`, the rest by their names."""
    names, made = list(names), dict(found)
    made |= {key: key for key in OURS if key in names and key not in made and key not in made.values()}
    lower = {usual_spelling(name): name for name in reversed(names)}
    for part, usual in USUAL.items():
        taken = set(made.values())
        likely = (lower[name] for name in usual if name in lower and lower[name] not in taken)
        if part not in made and (column := next(likely, "")):
            made[part] = column
    if "rewards" in names and "rewards" not in made.values():
        made["rewards"] = "rewards"
    return made


def is_generation(found: Mapping[str, str]) -> bool:
    return any(part in found for part in ("response", "response_ids", "messages"))


def looks_generated(found: Mapping[str, str]) -> bool:
    """Whether a table that nobody spoke of is one of generations: a text alone is a data set."""
    return is_generation(found) and any(part in found for part in ("prompt", "score", "advantages", "prompt_ids"))


def listed(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(f"`{name[:40]}`" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "none"
