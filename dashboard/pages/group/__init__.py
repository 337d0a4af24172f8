"""The group view: responses to one prompt in one step, and their unit tests. Start in `views.py`."""
