"""API tokens."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from rolloutdeck.protocol import TOKEN_SCOPES
from rollouts.models.projects import Project

if TYPE_CHECKING:
    from django.contrib.auth.models import User

WARNING_PERIOD = timedelta(days=14)  # before a token expires


def hash_secret(secret: str) -> str:
    """Returns the stored form of a token: sha256, hex. The secret has 256 random bits, so no salt is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Token(models.Model):
    """An API token. Without a `project` it is valid for all projects of its user, as the token that `up` creates."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="tokens")
    project = models.ForeignKey(Project, models.CASCADE, related_name="tokens", null=True, blank=True)
    name = models.CharField(max_length=80)
    scopes = models.CharField(max_length=60, help_text="comma-separated, of: " + ", ".join(TOKEN_SCOPES))
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    used_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def issue(cls, *, user: User, name: str, scopes: list[str], project: Project | None = None) -> tuple[Token, str]:
        """Returns a new token and its secret, which is not stored."""
        secret = "rd_" + secrets.token_urlsafe(32)
        values = {"scopes": ",".join(scopes), "digest": hash_secret(secret)}
        return cls.objects.create(user=user, name=name, project=project, **values), secret

    @classmethod
    def find(cls, secret: str) -> Token | None:
        """Returns the valid token with this secret. Updates `used_at` at most once a minute."""
        now = timezone.now()
        valid = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=now)) & Q(user__is_active=True)
        token = cls.objects.select_related("user").filter(valid, digest=hash_secret(secret)).first()
        if token and (token.used_at is None or now - token.used_at > timedelta(minutes=1)):
            cls.objects.filter(pk=token.pk).update(used_at=now)
        return token

    @classmethod
    def find_expired(cls, secret: str) -> Token | None:
        """Returns the token with this secret if it is not valid only because it has expired."""
        expired = {"revoked_at": None, "expires_at__lte": timezone.now(), "user__is_active": True}
        return cls.objects.filter(digest=hash_secret(secret), **expired).first()

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= timezone.now()

    @property
    def expires_soon(self) -> bool:
        return self.expires_at is not None and not self.is_expired and self.expires_at - timezone.now() < WARNING_PERIOD

    def allows(self, scope: str) -> bool:
        return scope in self.scopes.split(",")
