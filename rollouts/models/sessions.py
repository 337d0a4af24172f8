"""Sign-in sessions: which browsers are signed in."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import models
from django.utils import timezone


class SignInSession(AbstractBaseSession):
    """A browser that is signed in as `user`. Deleting the row signs it out."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="sign_in_sessions", null=True)
    created_at = models.DateTimeField(default=timezone.now, help_text="time of the sign-in")
    seen_at = models.DateTimeField(default=timezone.now, help_text="last request, to within five minutes")
    address = models.CharField(max_length=64, blank=True)
    user_agent = models.CharField(max_length=300, blank=True)

    @classmethod
    def get_session_store_class(cls) -> Any:
        return import_module(settings.SESSION_ENGINE).SessionStore


class SessionCutoff(models.Model):
    """When a user last signed out everywhere else: signed cookies from before that moment are not valid."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", primary_key=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.user_id} {self.at:%F %T}"
