"""Django's makemessages for both catalogues at once, without line numbers, so that only texts change them."""

from typing import Any

from django.core.management.base import CommandParser
from django.core.management.commands import makemessages

LANGUAGE = "zh_Hans"
IGNORED = ["rolloutdeck/*", "scripts/*", "examples/*", "tests/*", "static/vendor/*", "docs/*", ".*", "build/*"]


class Command(makemessages.Command):
    # Tables that are built at import mark their texts with N_, see `gettext_noop`.
    xgettext_options = [*makemessages.Command.xgettext_options, "--keyword=N_"]
    # A wrong guess for a new text is worse than a missing translation.
    msgmerge_options = [*makemessages.Command.msgmerge_options, "--no-fuzzy-matching"]

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.set_defaults(locale=[LANGUAGE], add_location="file", no_obsolete=True, no_wrap=True)

    def handle(self, *args: Any, **options: Any) -> None:
        options["ignore_patterns"] = [*options["ignore_patterns"], *IGNORED]
        for domain in ("django", "djangojs"):
            super().handle(*args, **{**options, "domain": domain})
