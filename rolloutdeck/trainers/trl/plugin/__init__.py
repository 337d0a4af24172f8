"""The code of Rolloutdeck in a TRL trainer: the callback, the capture of generations and the replay of pins.

Names of TRL are those of 1.16.0 (`trainer/grpo_trainer.py`, `trainer/rloo_trainer.py`). Nothing raises into the
training, except if a replay plan stops the run.
"""
