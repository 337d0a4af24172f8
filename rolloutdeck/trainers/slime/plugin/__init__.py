"""The functions of Rolloutdeck that slime's rollout manager calls: slime takes their paths as arguments.

Depends on: `rolloutdeck.trainers.common`, `rolloutdeck.client`, `rolloutdeck.replay`, `rolloutdeck.safe_pickle`.
Invariant: slime does not catch errors of these functions, so they raise nothing, except if a replay plan stops the
run.
Source: slime 624b824a (`observability/rollout_metrics.py`, `rollout/sglang_rollout.py`, `ray/rollout.py`).
"""

__all__: list[str] = []
