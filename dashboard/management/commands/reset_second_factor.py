"""`rolloutdeck reset-second-factor USER`: for a user who lost the authenticator app and the recovery codes."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from dashboard.management.accounts import find_account
from dashboard.sign_in import remove_second_factor
from rolloutdeck.cli import add_reset_second_factor_arguments


class Command(BaseCommand):
    help = "Remove a user's second factor. The password and the API tokens stay valid."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_reset_second_factor_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        user = find_account(options["user"])
        if remove_second_factor(user):
            self.stdout.write(f"The second factor of {user.get_username()} is removed. The next sign-in needs no code.")
        else:
            self.stdout.write(f"{user.get_username()} has no second factor. Nothing was changed.")
