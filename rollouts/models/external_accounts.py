"""What a sign-in service said last about an account: its groups, and whether it may still sign in."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone


class ExternalAccount(models.Model):
    """The state of an account that signs in with an OpenID provider or through a trusted proxy. All processes share it.

    Who the account is at the service (issuer and subject) is in allauth's table `SocialAccount`.
    """

    class Reason(models.TextChoices):
        GONE = "gone"  # the provider does not renew the sign-in
        GROUPS = "groups"  # no group gives a role, and nobody gave one by hand

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="external", primary_key=True)
    groups = models.JSONField(default=list, blank=True)
    renewal = models.TextField(blank=True, help_text="the refresh token, encrypted")
    checked_at = models.DateTimeField(default=timezone.now, help_text="last answer of the service")
    next_check_at = models.DateTimeField(default=timezone.now, help_text="also the claim of the process that checks")
    failed_since = models.DateTimeField(null=True, blank=True, help_text="the service does not answer since")
    ended_reason = models.CharField(max_length=10, choices=Reason.choices, blank=True, help_text="empty: may sign in")
    is_admin_by_group = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.user} ({', '.join(self.groups)})"

    @property
    def is_local_admin(self) -> bool:
        """A server admin whom no group made one: passwords and tokens of this account do not depend on the service."""
        return self.user.is_superuser and not self.is_admin_by_group
