"""The Celery workers: the app, the tasks and the functions that send them."""

from workers.celery import app

__all__ = ["app"]
