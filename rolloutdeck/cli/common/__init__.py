"""What several commands share: arguments, requests to the server, repeats, text files, and what a terminal shows.

Depends on: `rolloutdeck.lib` for requests, `rolloutdeck.client` for tokenizers.
Invariant: what a server or a file says is shown without control characters.
Names are imported when they are first used: `rolloutdeck --help` needs only the arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolloutdeck.lazy import lazy_names

if TYPE_CHECKING:
    from rolloutdeck.cli.common.arguments import add_run_arguments, add_server_arguments
    from rolloutdeck.cli.common.messages import end_sentence, format_count, format_sentence, print_message
    from rolloutdeck.cli.common.options import connect, parse_file_args, refuse_redaction, require_project, require_run
    from rolloutdeck.cli.common.requests import iterate_pages, send_request, split_rows
    from rolloutdeck.cli.common.retries import call_with_retries
    from rolloutdeck.cli.common.runs import find_run
    from rolloutdeck.cli.common.signals import SignalInterrupter
    from rolloutdeck.cli.common.terminal import clean_line, remove_control_characters
    from rolloutdeck.cli.common.text_files import open_text_replacement, read_text_lines

__all__ = [
    "SignalInterrupter", "add_run_arguments", "add_server_arguments", "call_with_retries", "clean_line", "connect",
    "end_sentence", "find_run", "format_count", "format_sentence", "iterate_pages", "open_text_replacement",
    "parse_file_args", "print_message", "read_text_lines", "refuse_redaction", "remove_control_characters",
    "require_project", "require_run", "send_request", "split_rows",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "arguments": ("add_run_arguments", "add_server_arguments"),
    "messages": ("end_sentence", "format_count", "format_sentence", "print_message"),
    "options": ("connect", "parse_file_args", "refuse_redaction", "require_project", "require_run"),
    "requests": ("iterate_pages", "send_request", "split_rows"),
    "retries": ("call_with_retries",),
    "runs": ("find_run",),
    "signals": ("SignalInterrupter",),
    "terminal": ("clean_line", "remove_control_characters"),
    "text_files": ("open_text_replacement", "read_text_lines"),
})  # fmt: skip
