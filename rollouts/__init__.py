"""The domain: what the web process and the workers share. It knows neither HTTP nor Celery.

A dump **arrives** (`ingest/`), is **indexed** (`indexing/`, through `formats/`), is seen **live** (`live/`), is
**flagged** (`flags/`), is **pinned** (`pins/`), is **replayed** (`replay/`). `models/` holds the tables.
docs/architecture.md says what the other folders are for.
"""
