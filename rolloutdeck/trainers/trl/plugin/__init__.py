"""What Rolloutdeck does inside a TRL trainer: the callback, what it takes of each generation, and the replay of pins.

Names of TRL's are those of 1.16.0 (`trainer/grpo_trainer.py`, `trainer/rloo_trainer.py`). Nothing raises into the
training, except where a replay plan asks to stop.
"""
