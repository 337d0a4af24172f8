"""`rolloutdeck account USER`: makes a user a server admin, or ends the access of a person who left."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from dashboard.management.accounts import find_account
from dashboard.sign_in import end_all_sessions
from rolloutdeck.cli import add_account_arguments
from rollouts.errors import ConflictError
from rollouts.projects import set_account_enabled, set_server_admin


class Command(BaseCommand):
    help = (
        "Show or change an account: server admin or not, enabled or not. The audit log of the server has each change."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_account_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        user = find_account(options["user"])
        try:
            with transaction.atomic():
                if options["admin"]:
                    set_server_admin(user, options["admin"] == "yes")
                if options["enabled"]:
                    set_account_enabled(user, options["enabled"] == "yes")
        except ConflictError as error:
            raise CommandError(str(error)) from error
        if not user.is_active:
            end_all_sessions(user)
        self.stdout.write(describe_account(user))


def describe_account(user: User) -> str:
    roles = user.memberships.select_related("project").order_by("project__slug")
    projects = ", ".join(f"{member.role} of {member.project.slug}" for member in roles) or "member of no project"
    admin = "server admin, " if user.is_superuser else ""
    state = (
        "" if user.is_active else " The account is disabled: nobody can sign in with it, and its tokens are refused."
    )
    return f"{user.get_username()}: {admin}{projects}.{state}"
