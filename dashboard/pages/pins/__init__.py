"""Pins, replay plans, the plan preview and the commands for the next run. Start in `pin_box.py` or `views.py`.

Depends on: `dashboard.pages.common`; pins and replay.
Invariant: saving a plan makes a new revision; a revision never changes.
"""

from dashboard.pages.pins.pin_box import build_pin_box
from dashboard.pages.pins.pin_list import ReplayLabel, build_pin_link, format_pin_name, load_replay_labels
from dashboard.pages.pins.plan_outcome import format_prompts

__all__ = [
    "ReplayLabel", "build_pin_box", "build_pin_link", "format_pin_name", "format_prompts", "load_replay_labels",
]  # fmt: skip
