"""The servers that this user started with `rolloutdeck up`, recorded below `~/.rolloutdeck`.

| file                        | content                                                                    |
|-----------------------------|----------------------------------------------------------------------------|
| `local.json`                | `url`, `token`, `data`, `host`, `boot` of the default server: started last |
| `servers/{host}-{pid}.json` | the same for each running server; removed when the server stops            |

Only this user may read the files. Several machines may share them: on each, `http://127.0.0.1:8460` is another server.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rolloutdeck.lib.atomic_file import open_replacement
from rolloutdeck.lib.loopback import is_loopback_url

LocalServer = dict[str, str]
CONNECT_SECONDS = 0.5


def find_home_folder(home: Path | None = None) -> Path:
    """Returns `~/.rolloutdeck`, or `.rolloutdeck` in the temporary folder if the user has no home folder."""
    if home is None:
        try:
            home = Path.home()
        except RuntimeError:
            import tempfile

            home = Path(tempfile.gettempdir())
    return home / ".rolloutdeck"


def load_local_server(home: Path | None = None) -> LocalServer:
    """Returns `url`, `token` and `data` of the default server; {} if there is none. If a server of another machine is
    the default, whose address would be another server here, returns the one that was started last on this machine."""
    server = _read_server(find_home_folder(home) / "local.json")
    is_here = server.get("host") == _get_host_name() or server.get("boot") == (_read_boot_id() or "unknown")
    if not is_loopback_url(server.get("url", "")) or is_here:
        return server
    own = _read_servers(home)
    if not server.get("host") and any(is_same_server(server["url"], other.get("url", "")) for other in own):
        return server  # written by an older version
    return own[-1] if own else {}


def find_local_token(url: str, home: Path | None = None) -> str:
    """Returns the token of the user's server with this address on this machine, "" if none of them has it."""
    for server in (load_local_server(home), *reversed(_read_servers(home))):
        if is_same_server(url, server.get("url", "")):
            return server.get("token", "")
    return ""


def list_running_servers(home: Path | None = None) -> list[LocalServer]:
    """Returns the servers of this user that answer on this machine, the one started last at the end.

    A killed server leaves its file, so each address is tried.
    """
    return [server for server in _read_servers(home) if _is_listening(server.get("url", ""))]


def record_local_server(url: str, token: str, data: Path) -> list[LocalServer]:
    """Records the server of this process and makes it the default. Returns the user's other running servers.

    Raises OSError if the home folder does not exist or is not writable.
    """
    others = [server for server in list_running_servers() if server.get("url") != url]
    text = json.dumps({"url": url, "token": token, "data": str(data), **_describe_machine()})
    home = find_home_folder()
    for folder in (home, home / "servers"):
        folder.mkdir(mode=0o700, exist_ok=True)
    write_private_file(_get_own_file(), text)
    write_private_file(home / "local.json", text)
    return others


def remove_local_server(url: str) -> LocalServer:
    """Removes the server of this process. Returns the running server that is the default now, {} if none took over.

    Without another server this one stays the default: clients spool for it and send when it runs again.
    """
    with contextlib.suppress(OSError):
        _get_own_file().unlink()
    others = list_running_servers()
    if not others or load_local_server().get("url") != url:
        return {}
    try:
        write_private_file(find_home_folder() / "local.json", json.dumps(others[-1]))
    except OSError:  # for example a full disk
        return {}
    return others[-1]


def is_same_server(url: str, other_url: str) -> bool:
    """Whether two addresses are equal apart from a trailing slash. An empty address equals none."""
    return bool(url) and url.rstrip("/") == other_url.rstrip("/")


def write_private_file(path: Path, text: str) -> None:
    """Replaces the file atomically. Only this user may read it."""
    with open_replacement(path, mode=0o600) as file:
        file.write(text.encode())


def _get_own_file() -> Path:
    return find_home_folder() / "servers" / f"{_get_host_name()}-{os.getpid()}.json"


def _get_host_name() -> str:
    import socket

    return re.sub(r"[^\w.]", "_", socket.gethostname()) or "unknown"


def _describe_machine() -> LocalServer:
    return {"host": _get_host_name(), "boot": _read_boot_id()}


def _read_boot_id() -> str:
    """Returns a number of this machine since its last start, which stays if its name changes; "" if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _is_listening(url: str) -> bool:
    import socket

    try:
        parts = urlsplit(url)
        address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection(address, CONNECT_SECONDS):
            return bool(parts.hostname)
    except (OSError, ValueError):
        return False


def _read_servers(home: Path | None = None) -> list[LocalServer]:
    """Returns the recorded servers of this machine, the one started last at the end. Killed ones may be among them."""
    try:
        files = [*(find_home_folder(home) / "servers").glob(f"{_get_host_name()}-*.json")]
        return [_read_server(file) for file in sorted(files, key=lambda file: file.stat().st_mtime_ns)]
    except OSError:
        return []


def _read_server(file: Path) -> LocalServer:
    try:
        data: Any = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    items = data.items() if isinstance(data, Mapping) else ()
    return {str(key): value for key, value in items if isinstance(value, str)}
