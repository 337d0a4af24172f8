"""An S3-compatible server for tests: moto, in a thread of this process, on 127.0.0.1. It starts with the first test."""

from __future__ import annotations

import logging
import os
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from uuid import uuid4

BUCKET = "rolloutdeck-tests"


@lru_cache
def start_server() -> str:
    """Returns its URL. Connections of this process and of its children find it by the environment."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    while server._server is None:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{server._server.server_port}"
    os.environ.update(
        AWS_ENDPOINT_URL=url, AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_REGION="us-east-1"
    )
    find_backend().create_bucket(BUCKET, "us-east-1")
    return url


def find_backend() -> object:
    from moto.s3.models import s3_backends

    return s3_backends["123456789012"]["aws"]


def create_place() -> str:
    """Returns the URL of a new prefix."""
    start_server()
    return f"s3://{BUCKET}/{uuid4().hex}"


def make_older(url: str, key: str, seconds: float) -> None:
    """Moves the time of an object into the past."""
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    stored = find_backend().buckets[BUCKET].keys[f"{prefix}/{key}"]
    stored.last_modified = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=seconds)
