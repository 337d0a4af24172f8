"""Demo data: recorded trainings with flags, a finding, a pinned step and a run that replays it.

Depends on: findings, flags, indexing, ingest, pins, projects, replay and storage.
Invariant: the data arrives as a trainer's data does, so every page shows it. Loading it twice changes nothing.
"""

from rollouts.demo.demo import DEMO_PROJECT, load_demo

__all__ = ["DEMO_PROJECT", "load_demo"]
