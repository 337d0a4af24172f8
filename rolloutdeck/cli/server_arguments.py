"""The arguments of the commands that run on the server's machine. The server's own commands have the same."""

from __future__ import annotations

import argparse
from pathlib import Path


def _add_data_argument(parser: argparse.ArgumentParser, help_text: str = "") -> None:
    default = "the server's data folder; default: ROLLOUTDECK_DATA, else ~/.rolloutdeck/data"
    parser.add_argument("--data", type=Path, metavar="FOLDER", help=help_text or default)


def add_backup_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("destination", type=Path, metavar="DIR", help="folder of all backups; only new files are copied into it")
    add("--keep", type=int, default=0, metavar="N", help="then remove all but the newest N backups; default: keep all")
    _add_data_argument(parser)


def add_restore_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("destination", type=Path, metavar="DIR", help="folder of the backups")
    add("--backup", default="", metavar="NAME", help="default: the newest")
    _add_data_argument(parser, "an empty or new data folder; required")


def add_fsck_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--sample", type=_parse_percent, default=100.0, metavar="PERCENT", help="files to verify; default: 100%%")
    add("--rate", type=float, metavar="MB", help="read at most so many MB per second; default: no limit")
    add("--grace", type=float, default=10_800.0, metavar="SECONDS", help="younger files are no orphans; default: 10800")
    add("--repair", action="store_true", help="rebuild bodies, remove orphans, mark what is lost")
    add("--json", action="store_true", help="print one JSON object")
    _add_data_argument(parser)


def add_forget_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--project", required=True, help="the project; others keep the prompt")
    key_help = "key of the prompt: the last part of the URL of its page, 26 letters and digits"
    add("--prompt", required=True, metavar="KEY", help=key_help)
    add("--containing", action="store_true", help="also remove samples of other prompts that contain the text")
    backups_help = "folder of backups; with --apply the prompt is removed from all of them too"
    add("--backups", type=Path, metavar="DIR", help=backups_help)
    add("--remove-backups", action="store_true", help="remove backups that cannot be changed: those of PostgreSQL")
    add("--apply", action="store_true", help="remove; without it the command only says what it would remove")
    _add_data_argument(parser)


def _parse_percent(text: str) -> float:
    value = float(text.removesuffix("%"))
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not between 0% and 100%")
    return value
