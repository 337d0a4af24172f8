"""The commands `labels` and `queues`: labels, rubrics, the reward check, and the review queues of a team.

Depends on: the other modules of `rolloutdeck.cli`.
Invariant: with `--json` the output is the server's response.
"""

from rolloutdeck.cli.review.arguments import add_labels_arguments, add_queues_arguments

__all__ = ["add_labels_arguments", "add_queues_arguments"]
