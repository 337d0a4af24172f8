"""Parses settings from the words of a command line: `key=value` as in Hydra, `--flag value` as in argparse."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rolloutdeck.errors import UsageError

_OVERRIDE = re.compile(r"(\+{1,2}|~)?([A-Za-z_][\w./@-]*)(?:=(.*))?\Z", re.S)
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?\Z", re.S)
_INTEGER = re.compile(r"[+-]?(0|[1-9](_?\d)*)", re.ASCII)  # as in Hydra's grammar
_ARRAY = re.compile(r"\$\{\w+\[[@*]\]\}\Z")
_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})\Z")
_SCRIPT_ARGUMENTS = ("$@", "$*", "${@}", "${*}")  # of a script without arguments, nothing


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """Returns the settings of `key=value`, `+key=value`, `++key=value`, `~key` (Hydra) and `--a-b value …` (`a_b`).

    The values of a flag end at the next flag or key. A flag without a value is true; several values are a list.
    A shell's variable in the place of a setting is returned under its name, `${NAME[@]}` or `${NAME}`, since it may
    contain settings. Raises UsageError for any other word.
    """
    settings: dict[str, Any] = {}
    rest = [word for word in words if word not in _SCRIPT_ARGUMENTS]
    while rest:
        word = rest.pop(0)
        if _ARRAY.match(word) or _VARIABLE.match(word):
            settings[f"${{{word.strip('${}')}}}"] = word
        elif flag := _FLAG.match(word):
            values = [] if flag.group(2) is None else [flag.group(2)]
            while flag.group(2) is None and rest and not _match_setting(rest[0]):
                values.append(rest.pop(0))
            parsed = [parse_scalar(value) for value in values]
            name = flag.group(1).replace("-", "_")
            settings[name] = True if not parsed else parsed[0] if len(parsed) == 1 else parsed
        elif override := _match_setting(word):
            settings[override.group(2)] = None if override.group(1) == "~" else parse_scalar(override.group(3))
        else:
            raise UsageError(f"{word!r} is not a setting. Write key=value or --flag value.")
    return settings


def _match_setting(word: str) -> re.Match[str] | None:
    """Returns the match of a flag, an override or a shell's array; None for a value."""
    if flag := _FLAG.match(word) or _ARRAY.match(word):
        return flag
    match = _OVERRIDE.match(word)
    return match if match and (match.group(3) is not None or match.group(1) == "~") else None


def parse_scalar(text: str) -> Any:
    """Parses a value as YAML and Hydra do: null, a boolean, a number, a list in brackets, otherwise text."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text[:1] == "[" and text[-1:] == "]":
        items = re.findall(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""", text[1:-1])
        return [item if item.strip()[:1] == "[" else parse_scalar(item) for item in items if item.strip()]
    if text.lower() in ("null", "~", ""):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if re.fullmatch(r"[+-]?0\d[\d_]*", text) or not text.isascii():  # Hydra keeps 001 as a text
        return text
    try:
        return float(text)
    except ValueError:
        return text
