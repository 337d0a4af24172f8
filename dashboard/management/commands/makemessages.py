"""Django's makemessages with our habits: both catalogues at once, and files without lines, so that they change only
with their texts."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.core.management.commands import makemessages

LANGUAGE = "zh_Hans"
OTHERS = ["rolloutdeck/*", "scripts/*", "examples/*", "tests/*", "static/vendor/*", "docs/*", ".*", "build/*"]


class Command(makemessages.Command):
    # A table made at import marks its texts with N_, see `gettext_noop`.
    xgettext_options = [*makemessages.Command.xgettext_options, "--keyword=N_"]
    # A guess at what a new text may mean is worse than a text that waits for its translator.
    msgmerge_options = [*makemessages.Command.msgmerge_options, "--no-fuzzy-matching"]

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.set_defaults(locale=[LANGUAGE], add_location="file", no_obsolete=True, no_wrap=True)

    def handle(self, *args: Any, **options: Any) -> None:
        options["ignore_patterns"] = [*options["ignore_patterns"], *OTHERS]
        for domain in ("django", "djangojs"):
            super().handle(*args, **{**options, "domain": domain})
