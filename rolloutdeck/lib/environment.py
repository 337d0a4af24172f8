"""Settings from environment variables. Only this module reads them, for trainers and for the command line.

Unset variables default to the server that `rolloutdeck up` recorded in `~/.rolloutdeck/local.json` on this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """The environment variables as text, "" if unset. `error`: a sentence if the token file can't be read, else ""."""

    url: str = ""
    token: str = ""
    ca_bundle: str = ""
    project: str = ""
    run: str = ""
    run_id: str = ""
    attempt: str = ""
    spool: str = ""
    tokens: str = ""
    plan: str = ""
    error: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, home: Path | None = None) -> Settings:
        """Reads `environ` (default: `os.environ`) and the local server's file below `home`. Never raises."""
        environ = os.environ if environ is None else environ

        def value(name: str) -> str:
            return environ.get(f"ROLLOUTDECK_{name}", "").strip()

        token, error = _read_token(value("TOKEN"), value("TOKEN_FILE"))
        local = load_local_server(home)
        url = value("URL") or local.get("url", "")
        # The token of the local server must not be sent to another server.
        if not token and not error and is_same_server(url, local.get("url", "")):
            token = local.get("token", "")
        names = ("CA_BUNDLE", "PROJECT", "RUN", "RUN_ID", "ATTEMPT", "SPOOL", "TOKENS", "PLAN")
        return cls(url, token, **{name.lower(): value(name) for name in names}, error=error)


def _read_token(token: str, file: str) -> tuple[str, str]:
    if token or not file:
        return token, ""
    try:
        return Path(file).expanduser().read_text("utf-8").strip(), ""
    except (OSError, ValueError, RuntimeError) as error:
        return "", f"The token file {file} (ROLLOUTDECK_TOKEN_FILE) can't be read: {error}."


def find_home_folder(home: Path | None = None) -> Path:
    """Returns `~/.rolloutdeck`, or `.rolloutdeck` in the temporary folder if the user has no home folder."""
    if home is None:
        try:
            home = Path.home()
        except RuntimeError:
            import tempfile

            home = Path(tempfile.gettempdir())
    return home / ".rolloutdeck"


def load_local_server(home: Path | None = None) -> dict[str, str]:
    """Returns `url`, `token` and `data` of this user's `rolloutdeck up` server; {} if there is none."""
    try:
        data: Any = json.loads((find_home_folder(home) / "local.json").read_bytes())
    except (OSError, ValueError):
        return {}
    items = data.items() if isinstance(data, dict) else ()
    return {str(key): value for key, value in items if isinstance(value, str)}


def is_same_server(url: str, other_url: str) -> bool:
    """Whether two addresses are equal apart from a trailing slash. An empty address equals none."""
    return bool(url) and url.rstrip("/") == other_url.rstrip("/")
