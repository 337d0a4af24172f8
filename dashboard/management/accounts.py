"""Finds the account that a command names."""

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import CommandError

from rollouts.backup import is_database_empty


def find_account(name: str) -> User:
    """Raises CommandError if there is no such account, or no database with accounts."""
    if is_database_empty():
        raise CommandError(
            f"There is no data in {settings.DATA_DIR}. Name the server's data folder with --data, and set DATABASE_URL "
            "if it uses PostgreSQL."
        )
    user = User.objects.filter(username=name).first()
    if user is None:
        raise CommandError(f"There is no account {name!r}.")
    return user
