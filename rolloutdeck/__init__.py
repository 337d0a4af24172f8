"""See what your model generates during reinforcement learning. Standard library only.

import rolloutdeck
run = rolloutdeck.init(project="math", name="qwen3-8b-grpo", config={...}, resume="allow")
run.log({"critic/score/mean": 0.31}, step=12)
run.log_samples(rows, step=12, split="train")
run.finish()

Depends on: nothing at import. `init` and `Run` are loaded from `rolloutdeck.client` at their first use.
Invariant: no call raises into the training or waits for the network.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` takes longer than the rest of this module
if TYPE_CHECKING:
    from rolloutdeck.client import Run, init

__all__ = ["Run", "init"]


def __getattr__(name: str) -> object:
    """Loads `Run` and `init` at the first use, so that importing the package costs a trainer nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rolloutdeck import client

    return getattr(client, name)
