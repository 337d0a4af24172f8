"""The code of Rolloutdeck in a TRL trainer: the callback, the capture of generations and the replay of pins.

Depends on: `rolloutdeck.trainers.common`, `rolloutdeck.client` and `rolloutdeck.replay`.
Invariant: nothing raises into the training, except if a replay plan stops the run.

Names of TRL are those of 1.16.0 (`trainer/grpo_trainer.py`, `trainer/rloo_trainer.py`).
"""

__all__: list[str] = []
