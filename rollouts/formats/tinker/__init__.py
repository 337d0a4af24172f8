"""Files of tinker-cookbook: summaries of rollouts, their texts, and trajectories of an evaluation.

Depends on: samples, the readers of `rollouts.formats`.
Invariant: a text is shown with the score of its own trajectory or not at all.
"""

from rollouts.formats.tinker import eval_trajectories, logtree, rollout_summaries

__all__ = ["FORMATS", "rollout_summaries"]

FORMATS = (rollout_summaries, logtree, eval_trajectories)
