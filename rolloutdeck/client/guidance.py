"""The guidance rules of a run's project, kept up to date by a thread of their own.

The trainer reads the last known rules and never waits. They are also in a file next to the spools, so that a restart
has them before the server answers, or if it never does.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rolloutdeck.lib import OnceLogger, ServerClient, ServerUnreachableError, logger, open_replacement
from rolloutdeck.protocol import (
    NO_GUIDANCE,
    GuidanceRules,
    RowGuidance,
    get_prompt_key,
    get_response_key,
    parse_guidance,
)

GUIDANCE_SECONDS = 10.0  # between two requests
MAX_PAUSE_SECONDS = 60.0  # after failed requests
REQUEST_SECONDS = 30.0
MAX_GUIDANCE_BYTES = 8 << 20  # larger rules are refused: they would stay in memory
FILE_PREFIX = ".guidance-"


class Guidance:
    """Follows the rules of a project. `rules` are the last known ones; version 0 has none. Nothing here raises or waits
    for the network, except `wait`."""

    def __init__(
        self,
        project: str,
        folder: Path,
        url: str,
        connect: Callable[[], ServerClient | None],
        once_logger: OnceLogger,
    ) -> None:
        name = hashlib.sha256(f"{url}\n{project}".encode()).hexdigest()[:20]
        self.rules: GuidanceRules = NO_GUIDANCE
        self.path = folder / f"{FILE_PREFIX}{name}.json"
        self._project, self._connect, self._once_logger = project, connect, once_logger
        self._etag, self._failures = "", 0
        self._wake_event, self._answered = threading.Event(), threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def find(self, prompt: Any, response: Any = "") -> RowGuidance | None:
        """Returns what applies to a row; None if nothing does. Both are texts or messages."""
        return self.rules.find(get_prompt_key(prompt), get_response_key(response))

    def wait(self, seconds: float) -> bool:
        """Waits for the server's first answer, at most `seconds`. Returns whether there was one. For scripts that must
        begin with the newest rules; trainers do not call it."""
        return self._answered.wait(seconds)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="rolloutdeck-guidance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._wake_event.set()

    def _run(self) -> None:
        try:
            self._load()
            while not self._closed:
                self._request()
                pause = GUIDANCE_SECONDS * 2 ** min(self._failures, 10)
                self._wake_event.wait(min(pause, MAX_PAUSE_SECONDS) if self._failures else GUIDANCE_SECONDS)
        except Exception:
            logger.exception("The guidance rules are not followed any more. The last known ones stay.")

    def _request(self) -> None:
        try:
            problem = self._fetch()
        except (ServerUnreachableError, ValueError) as error:
            problem = str(error)
        if not problem:
            self._failures = 0
            self._answered.set()
            return
        self._failures += 1
        message = "No new guidance rules, version %d stays in use: %s"
        self._once_logger.log_once(f"guidance {problem}", message, self.rules.version, problem)

    def _fetch(self) -> str:
        """Returns why there is no answer, "" if there is one. Raises ServerUnreachableError, ValueError."""
        server = self._connect()
        if server is None:
            return "no server is set"
        path = f"projects/{quote(self._project, safe='')}/guidance/selection/"
        headers = {"If-None-Match": self._etag} if self._etag else {}
        response = server.request("GET", path, headers=headers, timeout=REQUEST_SECONDS)
        if response.is_from_server and response.status == 304:
            return ""
        # The project is created with the run, or has no rules. A 404 of a proxy says neither.
        if response.is_from_server and response.status == 404 and not self.rules.version:
            return ""
        if not response.is_success:
            return response.error_message
        if len(response.body) > MAX_GUIDANCE_BYTES:
            return f"they have {len(response.body) >> 20} MiB"
        is_first = not self.rules.version
        self.rules = parse_guidance(response.json())
        self._etag = response.headers.get("etag", "")
        if self.rules.version or not is_first:
            self._store(response.body)
        return ""

    def _load(self) -> None:
        """Reads the rules that an earlier process has stored."""
        try:
            if self.path.stat().st_size > MAX_GUIDANCE_BYTES + 1000:
                return
            stored = json.loads(self.path.read_bytes())
            self.rules, self._etag = parse_guidance(stored["rules"]), str(stored["etag"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            if not isinstance(error, FileNotFoundError):
                self._once_logger.log_once("guidance file", "The stored guidance rules can't be read: %s", error)

    def _store(self, body: bytes) -> None:
        """Replaces the file. Without it, only a restart without a server is affected."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open_replacement(self.path) as file:
                file.write(b'{"etag":%b,"rules":%b}' % (json.dumps(self._etag).encode(), body))
        except OSError as error:
            self._once_logger.log_once("guidance store", "The guidance rules can't be stored: %s", error)
