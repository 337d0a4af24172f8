"""The domain: what web and worker share. It knows neither HTTP nor Celery.

A dump **arrives** (`ingest.py`), is **indexed** (`index.py`, through `formats/`), is seen **live** (`live.py`),
is **flagged** (`marking.py`), is **pinned** (`pins.py`), is **replayed** (`plans.py`, `replays.py`). `models/` holds
the rows; docs/architecture.md says what every other file is for.
"""
