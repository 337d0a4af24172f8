"""The Celery workers: the app, the tasks, `dispatch`, which sends them, and `liveness`, whether a worker runs.

Depends on: the domain. The app is imported before Django is set up, so this module imports nothing of the domain.
Invariant: a lost task only delays work, since the database rows say what is due.
"""

from workers.celery import app

__all__ = ["app", "dispatch", "liveness"]
