"""The prompts of a dry run: `rolloutdeck plan --prompts FILE` sends which prompts each step of a run will ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rolloutdeck.cli.common import read_text_lines, send_request, split_rows
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerClient

MAX_STEPS_PER_REQUEST = 10_000  # as many as the server takes
FORM = '{"step": 1, "prompts": ["2+2=", …]}'


def send_step_prompts(server: ServerClient, run: str, steps: dict[int, list[str]], step_kind: str) -> None:
    """Sends the prompts of these steps to the run. Raises UsageError."""
    for part in split_rows(steps.items(), MAX_STEPS_PER_REQUEST):
        body = {"steps": dict(part), "step_kind": step_kind}
        send_request(server, "POST", f"runs/{quote(run, safe='')}/prompts/", body)


def read_step_prompts(path: Path) -> dict[int, list[str]]:
    """Returns the prompts by step from JSON lines: one line per step (`prompts`), or one per prompt (`prompt`).

    A prompt is a text or a list of chat messages. Raises UsageError.
    """
    steps: dict[int, list[str]] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(read_text_lines(file, path), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                prompts = row["prompts"] if "prompts" in row else [row["prompt"]]
                if not isinstance(prompts, list):
                    raise ValueError
                steps.setdefault(_parse_step(row["step"]), []).extend(map(_format_prompt, prompts))
            except (ValueError, KeyError, TypeError, RecursionError):
                raise UsageError(f"{path}, line {number}: expected a JSON object like {FORM}.") from None
    if not steps:
        raise UsageError(f"{path} has no prompts. Expected lines like {FORM}.")
    return steps


def _parse_step(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value


def _format_prompt(prompt: Any) -> str:
    """Returns the text of a prompt; chat messages as a line with the role and the text, as chat templates decode."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}\n{_read_content(message['content'])}" for message in prompt)


def _read_content(content: Any) -> str:
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)
