"""Settings as words of a command line: `key=value` as Hydra takes it, `--flag value` as argparse does."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

from rolloutdeck.errors import UsageError

_OVERRIDE = re.compile(r"(\+{1,2}|~)?([A-Za-z_][\w./@-]*)(?:=(.*))?\Z", re.S)
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?\Z", re.S)


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """`key=value`, `+key=value`, `++key=value`, `~key` as Hydra reads them; `--a-b value …` as the setting `a_b`, which
    ends at the next of either. A flag without a value is true, one with several is a list.

    Raises UsageError for anything else.
    """
    found: dict[str, Any] = {}
    flag, values = "", list[str]()
    for word in words:
        if key := _key(word):
            found |= _flag(flag, values)
            flag, values = _begun(word, key, found)
        elif flag:
            values.append(word)
        else:
            raise UsageError(f"{word!r} is no setting; write key=value or --flag value.")
    return found | _flag(flag, values)


def _key(word: str) -> re.Match[str] | None:
    if flag := _FLAG.match(word):
        return flag
    match = _OVERRIDE.match(word)
    return match if match and (match.group(3) is not None or match.group(1) == "~") else None


def _begun(word: str, match: re.Match[str], found: dict[str, Any]) -> tuple[str, list[str]]:
    """Puts a word that is a whole setting into `found`; else the name of the flag that begins."""
    if not word.startswith("--"):
        found[match.group(2)] = None if match.group(1) == "~" else parse_scalar(match.group(3))
        return "", []
    name = match.group(1).replace("-", "_")
    if match.group(2) is None:
        return name, []
    found[name] = parse_scalar(match.group(2))
    return "", []


def _flag(name: str, values: list[str]) -> dict[str, Any]:
    if not name:
        return {}
    read = [parse_scalar(value) for value in values]
    return {name: True if not read else read[0] if len(read) == 1 else read}


def split_words(text: str) -> list[str]:
    """The words of a text as a shell splits them. Raises ValueError where a quote is left open."""
    return shlex.split(text.replace("\\\n", " "), comments=True)


def parse_scalar(text: str) -> Any:
    """A value as YAML and Hydra write it: null, a truth value, a number, a list of such in brackets, else text."""
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
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
