"""slime's files: the samples of a rollout with their texts, and the training inputs of the same samples.

Depends on: samples, the readers of `rollouts.formats`, the batches of `rolloutdeck.safe_pickle`.
Invariant: training inputs add no samples to a step that has a rollout; they are merged by trajectory.
"""

from rollouts.formats.slime import rollout, train

__all__ = ["rollout", "train"]
