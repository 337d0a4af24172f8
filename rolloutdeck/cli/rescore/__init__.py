"""`rolloutdeck rescore` and `rolloutdeck judge`: another reward function, or a model, on the stored samples of a query.

Depends on: `rolloutdeck.lib` for requests to the server; the standard library.
Invariant: the function of the user runs only here, in processes of its own, each call limited in time. What is stored
on the server is not computed again. A sample that was sent to a model is not sent again, even after a kill.
"""

from rolloutdeck.cli.rescore.arguments import add_judge_arguments, add_rescore_arguments

__all__ = ["add_judge_arguments", "add_rescore_arguments"]
