"""Machines' keys."""

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


def hash_secret(secret: str) -> str:
    """How a token is stored: sha256, hex. The secret has 256 bits of its own, so no salt or stretching is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Token(models.Model):
    """A machine's key. `project` empty means every project its user may see (the token beside `up`)."""

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
        """A new token and its secret, which is not stored and so is shown once."""
        secret = "rd_" + secrets.token_urlsafe(32)
        token = cls.objects.create(
            user=user, name=name, scopes=",".join(scopes), project=project, digest=hash_secret(secret)
        )
        return token, secret

    @classmethod
    def find(cls, secret: str) -> Token | None:
        """The live token with this secret, `used_at` brought up to date at most once a minute."""
        now = timezone.now()
        live = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=now)) & Q(user__is_active=True)
        token = cls.objects.select_related("user", "project").filter(live, digest=hash_secret(secret)).first()
        if token and (token.used_at is None or now - token.used_at > timedelta(minutes=1)):
            cls.objects.filter(pk=token.pk).update(used_at=now)
        return token

    def allows(self, scope: str) -> bool:
        return scope in self.scopes.split(",")
