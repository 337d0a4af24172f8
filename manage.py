#!/usr/bin/env python
"""Django's command line, with this project's settings."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    try:
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)
    except KeyboardInterrupt:  # Django takes seconds to import, before a command handles Ctrl-C itself
        sys.exit(130)


if __name__ == "__main__":
    main()
