"""torchforge: rows of its episodes, for its training loop. It writes no dump, and its loop is a script of the user.

Source: `Episode` in apps/grpo/main.py and `Completion` in src/forge/data_models/completion.py, meta-pytorch/torchforge
6e77f0b3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.trainers.common import catch_errors, drop_none

STEP_KIND = "policy_version"


@catch_errors
def log_episodes(run: Run, prompt: str, episodes: Sequence[Any]) -> None:
    """Records the episodes of a prompt, as samples of the version of the policy that generated the first one.

    Call it after `episode.advantage` is set. It never raises and never waits for the network.
    """
    rows = [build_row(prompt, episode) for episode in episodes]
    step = next((row["policy_version"] for row in rows if "policy_version" in row), 0)
    run.log_samples(rows, step, step_kind=STEP_KIND)


def build_row(prompt: str, episode: Any) -> dict[str, Any]:
    completion, advantage = episode.completion, episode.advantage
    row = {
        "prompt": prompt,
        "response": completion.text,
        "score": episode.reward,
        "rewards": getattr(episode, "reward_breakdown", None),
        "ground_truth": episode.target,
        "advantages": None if advantage is None else float(advantage),
        "finish_reason": completion.stop_reason,
        "prompt_ids": completion.prompt_ids,
        "response_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "policy_version": episode.policy_version,
    }
    return drop_none(row)
