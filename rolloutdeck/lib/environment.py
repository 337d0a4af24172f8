"""Where the trainer side and the command line read their environment; nowhere else does.

Unset variables fall back to what `rolloutdeck up` left in `~/.rolloutdeck/local.json` on this machine.
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
    """The variables of a trainer, as text; "" where nothing is set.

    `problem` is one sentence when something that was asked for could not be read (a token file), else "".
    """

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
    problem: str = ""

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None, home: Path | None = None) -> Settings:
        """Reads `environ` (default: the process's) and the local server's file below `home`. Never raises."""
        environ = os.environ if environ is None else environ

        def value(name: str) -> str:
            return environ.get(f"ROLLOUTDECK_{name}", "").strip()

        token, problem = _token(value("TOKEN"), value("TOKEN_FILE"))
        local = load_local_server(home)
        url = value("URL") or local.get("url", "")
        # The local token never travels to another server.
        if not token and not problem and is_same_server(url, local.get("url", "")):
            token = local.get("token", "")
        return cls(
            url=url,
            token=token,
            ca_bundle=value("CA_BUNDLE"),
            project=value("PROJECT"),
            run=value("RUN"),
            run_id=value("RUN_ID"),
            attempt=value("ATTEMPT"),
            spool=value("SPOOL"),
            tokens=value("TOKENS"),
            plan=value("PLAN"),
            problem=problem,
        )


def _token(token: str, file: str) -> tuple[str, str]:
    if token or not file:
        return token, ""
    try:
        return Path(file).expanduser().read_text("utf-8").strip(), ""
    except (OSError, ValueError, RuntimeError) as error:
        return "", f"The token file {file} (ROLLOUTDECK_TOKEN_FILE) can't be read: {error}."


def find_home_folder(home: Path | None = None) -> Path:
    """`~/.rolloutdeck`, below the temporary folder where the user has no home."""
    if home is None:
        try:
            home = Path.home()
        except RuntimeError:
            import tempfile

            home = Path(tempfile.gettempdir())
    return home / ".rolloutdeck"


def load_local_server(home: Path | None = None) -> dict[str, str]:
    """`url`, `token` and `data` of the server that `rolloutdeck up` runs for this user; {} where there is none."""
    try:
        found: Any = json.loads((find_home_folder(home) / "local.json").read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(key): value for key, value in found.items() if isinstance(value, str)}


def is_same_server(one: str, other: str) -> bool:
    return bool(one) and one.rstrip("/") == other.rstrip("/")
