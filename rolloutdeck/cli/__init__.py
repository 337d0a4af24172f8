"""The command line: one module or folder per command, each with `main(args) -> exit status`.

Depends on: all other folders of `rolloutdeck`.
Invariant: results are printed to standard output, messages to standard error.
"""

from rolloutdeck.cli.common import format_count
from rolloutdeck.cli.entry import main
from rolloutdeck.cli.server_arguments import (
    add_account_arguments,
    add_backup_arguments,
    add_copy_sqlite_arguments,
    add_forget_arguments,
    add_fsck_arguments,
    add_link_account_arguments,
    add_reset_second_factor_arguments,
    add_restore_arguments,
    add_storage_arguments,
)

__all__ = [
    "add_account_arguments", "add_backup_arguments", "add_copy_sqlite_arguments", "add_forget_arguments",
    "add_fsck_arguments", "add_link_account_arguments", "add_reset_second_factor_arguments",
    "add_restore_arguments", "add_storage_arguments", "format_count", "main",
]  # fmt: skip
