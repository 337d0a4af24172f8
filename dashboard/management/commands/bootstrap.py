"""What has to be there before the first request: tables, a person who may do all, and the local token."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand

from dashboard.pages.settings import create_sign_in_link
from rolloutdeck.protocol import TOKEN_SCOPES
from rollouts.models import Token

ADMIN = "admin"
TOKEN_NAME = "local"


class Command(BaseCommand):
    help = "Migrate, make the first admin and the local token; print {user, token, link} as JSON."

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", interactive=False, stdout=self.stderr)
        user = first_admin()
        ready = {"user": user.get_username(), "token": local_token(user), "link": create_sign_in_link(user)}
        self.stdout.write(json.dumps(ready))


def first_admin() -> User:
    """The oldest active superuser; made, without a password, on the first start."""
    found = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    return found or User.objects.create_superuser(ADMIN)


def local_token(user: User) -> str:
    """The secret kept beside the data while it is still good for this user, else a new one."""
    kept = settings.DATA_DIR / "run" / "token"
    secret = kept.read_text(encoding="utf-8").strip() if kept.exists() else ""
    token = Token.find(secret) if secret else None
    if token and token.user_id == user.pk:
        return secret
    Token.objects.filter(user=user, name=TOKEN_NAME, project=None).delete()
    return Token.issue(user=user, name=TOKEN_NAME, scopes=list(TOKEN_SCOPES))[1]
