"""Settings from environment variables. Only this module reads them, for trainers and for the command line.

Unset variables default to the server that `rolloutdeck up` recorded in `~/.rolloutdeck/local.json` on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rolloutdeck.lib.local_servers import find_local_token, load_local_server


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
    context: str = ""
    redact: str = ""
    guidance: str = ""
    error: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, home: Path | None = None) -> Settings:
        """Reads `environ` (default: `os.environ`) and the local server's file below `home`. Never raises."""
        environ = os.environ if environ is None else environ

        def value(name: str) -> str:
            return environ.get(f"ROLLOUTDECK_{name}", "").strip()

        token, error = _read_token(value("TOKEN"), value("TOKEN_FILE"))
        url = value("URL") or load_local_server(home).get("url", "")
        # The token of a local server must not be sent to another server.
        if not token and not error:
            token = find_local_token(url, home)
        names = (
            "CA_BUNDLE", "PROJECT", "RUN", "RUN_ID", "ATTEMPT", "SPOOL", "TOKENS", "PLAN", "CONTEXT", "REDACT",
            "GUIDANCE",
        )  # fmt: skip
        return cls(url, token, **{name.lower(): value(name) for name in names}, error=error)


def _read_token(token: str, file: str) -> tuple[str, str]:
    if token or not file:
        return token, ""
    try:
        return Path(file).expanduser().read_text("utf-8").strip(), ""
    except (OSError, ValueError, RuntimeError) as error:
        return "", f"The token file {file} (ROLLOUTDECK_TOKEN_FILE) can't be read: {error}."
