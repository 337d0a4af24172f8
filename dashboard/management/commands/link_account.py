"""`rolloutdeck link-account USER SUBJECT`: lets a person of the sign-in service sign in as an account that exists."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from dashboard.management.accounts import find_account
from dashboard.sign_in.external import (
    PROXY_ISSUER,
    Identity,
    SignInRefusedError,
    get_openid_settings,
    link_account,
    unlink_account,
)
from rolloutdeck.cli import add_link_account_arguments


class Command(BaseCommand):
    help = "Link an account to a person of the OpenID provider or of the trusted proxy."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_link_account_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        user = find_account(options["user"])
        name = user.get_username()
        if options["remove"]:
            self.stdout.write(f"{unlink_account(user, None)} links of {name} are removed. Its sessions are ended.")
            return
        if not options["subject"] or not (options["proxy"] or settings.OPENID):
            raise CommandError("SUBJECT is missing, or ROLLOUTDECK_OIDC_ISSUER is not set here (else use --proxy).")
        issuer = PROXY_ISSUER if options["proxy"] else get_openid_settings().issuer
        try:
            link_account(user, Identity(issuer, options["subject"], "", "", ()), None)
        except SignInRefusedError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{name} now signs in as {options['subject']!r} of {issuer}.")
