"""The domain: what web and worker share. It knows neither HTTP nor Celery.

A dump **arrives** (`ingest.py`), is **indexed** (`index.py`, through `formats/`), is seen **live** (`live.py`),
is **flagged** (`flags.py`), is **pinned**, is **replayed**. One file per verb; `models.py` holds the rows.
"""
