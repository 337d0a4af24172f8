"""Tests and scripts write to servers of their own, never to one that a person uses."""

from __future__ import annotations

from collections.abc import MutableMapping


def forget_real_servers(environ: MutableMapping[str, str]) -> None:
    """Removes what names a data folder, a bucket, a Redis or a database from the variables of a process. It and its
    children do not read the checkout's `.env` either. What stays is the PostgreSQL of `scripts/with_postgres.sh`."""
    for name in [name for name in environ if name.startswith("ROLLOUTDECK_")]:
        del environ[name]
    environ.pop("REDIS_URL", None)
    environ["DATABASE_URL"] = environ.get("TEST_DATABASE_URL", "")
    environ["DJANGO_READ_DOT_ENV_FILE"] = "off"
