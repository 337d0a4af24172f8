"""The commands `labels`, `queues` and `guidance`: labels, rubrics, the reward check, review queues, guidance rules.

Depends on: the other modules of `rolloutdeck.cli`.
Invariant: with `--json` the output is the server's response.
"""

from rolloutdeck.cli.review.arguments import add_guidance_arguments, add_labels_arguments, add_queues_arguments

__all__ = ["add_guidance_arguments", "add_labels_arguments", "add_queues_arguments"]
