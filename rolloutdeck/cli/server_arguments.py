"""The arguments of the commands that run on the server's machine. Those of `manage.py` have the same."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

MAX_PROCESSES: Final = 64  # of one kind


def _add_data_argument(parser: argparse.ArgumentParser, help_text: str = "") -> None:
    default = "the server's data folder; default: ROLLOUTDECK_DATA, else ~/.rolloutdeck/data"
    parser.add_argument("--data", type=Path, metavar="FOLDER", help=help_text or default)


def add_up_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="*", type=Path, metavar="PATH", help="folders to watch")
    add("--data", type=Path, default=None, help="default: ROLLOUTDECK_DATA, else ~/.rolloutdeck/data")
    add("--host", default="", help="default: 127.0.0.1")
    add("--port", type=int, default=0, help="default: 8460")
    add("--web", type=_parse_processes, default=1, metavar="N", help="web processes; default: 1")
    add("--workers", type=_parse_processes, default=2, metavar="N", help="processes that index; default: 2")
    add("--demo", action="store_true", help="also train a tiny demo model (needs torch)")


def add_web_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="default: 127.0.0.1")
    add("--port", type=int, default=8460, help="several web processes of a user may share it; default: 8460")
    _add_data_argument(parser)


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    count_help = "processes of this worker; default: 2"
    parser.add_argument("--processes", type=_parse_processes, default=2, metavar="N", help=count_help)
    port_help = "answer Prometheus on this port; default: ROLLOUTDECK_METRICS_PORT, else not at all"
    parser.add_argument("--metrics-port", type=int, default=0, metavar="PORT", help=port_help)
    _add_data_argument(parser)


def add_migrate_arguments(parser: argparse.ArgumentParser) -> None:
    link_help = "then create the first admin, and print a link that signs in once"
    parser.add_argument("--link", action="store_true", help=link_help)
    _add_data_argument(parser)


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


def add_copy_sqlite_arguments(parser: argparse.ArgumentParser) -> None:
    path_help = "the SQLite database; default: db.sqlite3 of the data folder"
    parser.add_argument("path", nargs="?", type=Path, metavar="FILE", help=path_help)
    _add_data_argument(parser)


def add_fsck_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--sample", type=_parse_percent, default=100.0, metavar="PERCENT", help="files to verify; default: 100%%")
    add("--rate", type=float, metavar="MB", help="read at most so many MB per second; default: no limit")
    add("--grace", type=float, default=10_800.0, metavar="SECONDS", help="younger files are no orphans; default: 10800")
    add("--repair", action="store_true", help="rebuild bodies, remove orphans, mark what is lost")
    add("--json", action="store_true", help="print one JSON object")
    _add_data_argument(parser)


def add_storage_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("verb", choices=("move",), help="copy all files to another place, and use that from the next start on")
    add("place", metavar="PLACE", help="s3://BUCKET/PREFIX, or disk for the data folder")
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


def add_link_account_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("user", metavar="USER", help="name of the account")
    add("subject", metavar="SUBJECT", nargs="?", default="", help="`sub` at the provider")
    add("--proxy", action="store_true", help="SUBJECT is the name that the proxy sends")
    add("--remove", action="store_true", help="remove all links of the account, and its group roles")
    _add_data_argument(parser)


def add_account_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("user", metavar="USER", help="name of the account")
    admin_help = "yes: a server admin, who may do everything in all projects; no: only what the roles in projects allow"
    add("--admin", choices=("yes", "no"), default="", help=admin_help)
    enabled_help = "no: end all sessions, refuse sign-in and access tokens, keep labels and findings; yes: as before"
    add("--enabled", choices=("yes", "no"), default="", help=enabled_help)
    _add_data_argument(parser)


def add_reset_second_factor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("user", metavar="USER", help="name of the account")
    _add_data_argument(parser)


def _parse_percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not a percentage between 0 and 100")
    return value


def _parse_processes(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MAX_PROCESSES:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to {MAX_PROCESSES}")
    return int(text)
