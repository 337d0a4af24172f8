"""Creates or changes the tables, for servers whose processes are started one by one."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.management.commands.bootstrap import find_or_create_admin
from dashboard.sign_in import create_sign_in_link
from rolloutdeck.lib import read_version
from rollouts.backup import UpgradeError, migrate_database
from rollouts.storage import StorageRefusedError, check_storage


class Command(BaseCommand):
    help = "Create the tables, or change those of an older version. Run it before web processes and workers start."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--link", action="store_true", help="then create the first admin and print a sign-in link")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            migrate_database(self.stderr)
            check_storage()
        except (UpgradeError, StorageRefusedError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"The tables are those of Rolloutdeck {read_version()}.")
        if options["link"]:
            user = find_or_create_admin()
            self.stdout.write(f"Sign in as {user.get_username()} with this link (valid once, for 24 hours):")
            self.stdout.write(create_sign_in_link(user))
