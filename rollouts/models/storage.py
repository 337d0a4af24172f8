"""Where the stored files of this server are."""

from uuid import uuid4

from django.db import models


def create_server_id() -> str:
    return uuid4().hex


class StorageLocation(models.Model):
    """The only row. `url` is "" for the data folder, or `s3://bucket/prefix`. The bucket has `server` too, so that no
    second server uses it.

    During a move `moving_to` is the new place, to which processes may write already. When all do, it becomes `url`, and
    `moved_from` is the old one until its last file is copied.
    """

    server = models.CharField(max_length=32, default=create_server_id)
    url = models.CharField(max_length=500, blank=True)
    moving_to = models.CharField(max_length=500, null=True, blank=True)  # noqa: DJ001  "" is a place
    moved_from = models.CharField(max_length=500, null=True, blank=True)  # noqa: DJ001

    def __str__(self) -> str:
        return self.url or "the data folder"
