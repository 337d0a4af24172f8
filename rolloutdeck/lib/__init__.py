"""Helpers of the trainer side: environment variables, files, HTTP, downloads, symlinks, log lines, version.

Depends on: the standard library and `rolloutdeck.protocol`.
Invariant: a failed request raises `ServerUnreachableError` or `DownloadError`, which callers in a trainer catch.
Names are imported when they are first used: a trainer pays for what it imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolloutdeck.lazy import lazy_names

if TYPE_CHECKING:
    from rolloutdeck.lib.atomic_file import open_replacement
    from rolloutdeck.lib.download import DownloadError, DownloadLimits, DownloadProgress, download_file, hash_file
    from rolloutdeck.lib.environment import Settings
    from rolloutdeck.lib.file_lock import try_lock
    from rolloutdeck.lib.http import (
        FileSlice,
        RunClient,
        ServerClient,
        ServerResponse,
        ServerUnreachableError,
        build_run_headers,
        encode_json,
    )
    from rolloutdeck.lib.local_servers import (
        find_home_folder,
        find_local_token,
        is_same_server,
        list_running_servers,
        load_local_server,
        record_local_server,
        remove_local_server,
        write_private_file,
    )
    from rolloutdeck.lib.log import OnceLogger, log_or_print, logger
    from rolloutdeck.lib.loopback import is_loopback_host, is_loopback_url
    from rolloutdeck.lib.path_type import get_path_type, read_path_type
    from rolloutdeck.lib.symlinks import detect_created_owner, find_folder_owner, is_safe_to_follow, read_safe_stat
    from rolloutdeck.lib.units import format_bytes
    from rolloutdeck.lib.version import read_version

__all__ = [
    "DownloadError", "DownloadLimits", "DownloadProgress", "FileSlice", "OnceLogger", "RunClient", "ServerClient",
    "ServerResponse", "ServerUnreachableError", "Settings", "build_run_headers", "detect_created_owner",
    "download_file", "encode_json", "find_folder_owner", "find_home_folder", "find_local_token", "format_bytes",
    "get_path_type", "hash_file", "is_loopback_host", "is_loopback_url", "is_safe_to_follow", "is_same_server",
    "list_running_servers", "load_local_server", "log_or_print", "logger", "open_replacement", "read_path_type",
    "read_safe_stat", "read_version", "record_local_server", "remove_local_server", "try_lock",
    "write_private_file",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "atomic_file": ("open_replacement",),
    "download": ("DownloadError", "DownloadLimits", "DownloadProgress", "download_file", "hash_file"),
    "environment": ("Settings",),
    "file_lock": ("try_lock",),
    "loopback": ("is_loopback_host", "is_loopback_url"),
    "local_servers": (
        "find_home_folder", "find_local_token", "is_same_server", "list_running_servers", "load_local_server",
        "record_local_server", "remove_local_server", "write_private_file",
    ),
    "http": (
        "FileSlice", "RunClient", "ServerClient", "ServerResponse", "ServerUnreachableError", "build_run_headers",
        "encode_json",
    ),
    "log": ("OnceLogger", "log_or_print", "logger"),
    "path_type": ("get_path_type", "read_path_type"),
    "symlinks": ("detect_created_owner", "find_folder_owner", "is_safe_to_follow", "read_safe_stat"),
    "units": ("format_bytes",),
    "version": ("read_version",),
})  # fmt: skip
