"""The comparison of two to six steps. Start in `views.py`; the numbers come from `rollouts.compare`."""
