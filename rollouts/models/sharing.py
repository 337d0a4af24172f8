"""Links that show one thing to people without an account."""

from __future__ import annotations

import gzip
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.utils import timezone

from rollouts.models.projects import Project


class SharedLinkQuerySet(models.QuerySet["SharedLink"]):
    def valid(self) -> SharedLinkQuerySet:
        return self.filter(revoked_at=None, expires_at__gt=timezone.now())


class SharedLink(models.Model):
    """A read-only link to a snapshot: `content` is the complete page, gzipped HTML, as it was when it was created. The
    secret of the link is not stored. The content is deleted when the link is revoked or has expired."""

    class Kind(models.TextChoices):
        FINDING = "finding"
        COMPARISON = "comparison"
        CHART = "chart"

    project = models.ForeignKey(Project, models.CASCADE, related_name="shared_links")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    title = models.CharField(max_length=200)
    content = models.BinaryField()
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar = SharedLinkQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.kind} {self.title}"

    @property
    def is_valid(self) -> bool:
        return self.revoked_at is None and self.expires_at > timezone.now()

    @property
    def html(self) -> str:
        return gzip.decompress(bytes(self.content)).decode()
