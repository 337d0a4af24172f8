"""What Rolloutdeck does inside slime's rollout manager, by the paths of functions that slime takes as arguments.

Read from slime 624b824a (`observability/rollout_metrics.py`, `rollout/sglang_rollout.py`, `ray/rollout.py`). What slime
calls lets errors through, so nothing here raises, except where a replay plan asks to stop.
"""
