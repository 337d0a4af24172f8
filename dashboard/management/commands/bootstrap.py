"""Creates what the server needs before the first request: tables, an admin, and the local token."""

import json
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError
from django.db import IntegrityError, transaction

from dashboard.sign_in import create_sign_in_link
from rolloutdeck.protocol import TOKEN_SCOPES
from rollouts.backup import UpgradeError, migrate_database
from rollouts.models import Token
from rollouts.storage import StorageRefusedError, check_storage

ADMIN = "admin"
TOKEN_NAME = "local"


class Command(BaseCommand):
    help = "Migrate, create the first admin and the local token; print {user, token, link} as JSON."
    requires_system_checks = []  # they import all pages, which takes seconds of each start

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            migrate_database(self.stderr)
            check_storage()
        except (UpgradeError, StorageRefusedError) as error:
            raise CommandError(str(error)) from error
        user = find_or_create_admin()
        token, link = read_or_create_token(user), create_sign_in_link(user)
        self.stdout.write(json.dumps({"user": user.get_username(), "token": token, "link": link}))


def find_or_create_admin() -> User:
    """The oldest active superuser. On the first start it is created without a password."""
    if admin := find_admin():
        return admin
    try:
        with transaction.atomic():
            return User.objects.create_superuser(ADMIN)
    except IntegrityError:
        if admin := find_admin():  # another process was faster
            return admin
        command = f"rolloutdeck account {ADMIN} --admin yes --enabled yes"
        raise CommandError(f"No server admin can sign in. Run `{command}`, then start again.") from None


def find_admin() -> User | None:
    return User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()


def read_or_create_token(user: User) -> str:
    """The secret stored in the data folder if it is still valid for this user, else a new one."""
    path = settings.DATA_DIR / "run" / "token"
    secret = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    token = Token.find(secret) if secret else None
    if token and token.user_id == user.pk:
        return secret
    Token.objects.filter(user=user, name=TOKEN_NAME, project=None).delete()
    return Token.issue(user=user, name=TOKEN_NAME, scopes=list(TOKEN_SCOPES))[1]
