"""The functions of Rolloutdeck that slime's rollout manager calls: slime takes their paths as arguments.

Source: slime 624b824a (`observability/rollout_metrics.py`, `rollout/sglang_rollout.py`, `ray/rollout.py`). slime does
not catch errors of these functions, so they raise nothing, except if a replay plan stops the run.
"""
