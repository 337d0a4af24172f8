"""Settings as words of a command line: `key=value` as Hydra takes it, `--flag value` as argparse does, and both in a
shell script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from rolloutdeck.errors import BadInput

_OVERRIDE = re.compile(r"(\+{1,2}|~)?([A-Za-z_][\w./@-]*)(?:=(.*))?\Z", re.S)
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?\Z", re.S)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_LONGEST = 1 << 16  # characters of a word of a script with its variables put in; a longer one stays as it stands
_ENDS = ("(", ")", ";", "&&", "||", "|", "&", "--")  # of a shell's list of words


def overrides(words: Iterable[str], *, strict: bool = True) -> dict[str, Any]:
    """`key=value`, `+key=value`, `++key=value`, `~key` as Hydra reads them; `--a-b value …` as the setting `a_b`, which
    ends at the next of either. A flag without a value is true, one with several is a list.

    Raises BadInput for anything else; it is passed over where not `strict`.
    """
    found: dict[str, Any] = {}
    flag, values = "", list[str]()
    for word in words:
        if key := _key(word):
            found |= _flag(flag, values)
            flag, values = _begun(word, key, found)
        elif flag:
            values.append(word)
        elif strict:
            raise BadInput(f"{word!r} is no setting; write key=value or --flag value.")
    return found | _flag(flag, values)


def _key(word: str) -> re.Match[str] | None:
    if flag := _FLAG.match(word):
        return flag
    match = _OVERRIDE.match(word)
    return match if match and (match.group(3) is not None or match.group(1) == "~") else None


def _begun(word: str, match: re.Match[str], found: dict[str, Any]) -> tuple[str, list[str]]:
    """Puts a word that is a whole setting into `found`; else the name of the flag that begins."""
    if not word.startswith("--"):
        found[match.group(2)] = None if match.group(1) == "~" else scalar(match.group(3))
        return "", []
    name = match.group(1).replace("-", "_")
    if match.group(2) is None:
        return name, []
    found[name] = scalar(match.group(2))
    return "", []


def _flag(name: str, values: list[str]) -> dict[str, Any]:
    if not name:
        return {}
    read = [scalar(value) for value in values]
    return {name: True if not read else read[0] if len(read) == 1 else read}


def words(text: str) -> list[str]:
    """The words of a text as a shell splits them. Raises ValueError where a quote is left open."""
    return shlex.split(text.replace("\\\n", " "), comments=True)


def script(text: str) -> dict[str, Any]:
    """What the words of a shell script set: its flags and `key=value`, with the script's own plain variables put in.
    Everything else in it is passed over, and nothing is run. Raises ValueError where a quote is left open."""
    known: dict[str, str] = {}
    found: dict[str, Any] = {}
    sentence: list[str] = []
    for raw in words(text):
        word = _put_in(raw, known)
        match = _key(word)
        if match and not word.startswith("--"):
            known[match.group(2)] = match.group(3) or ""
        if word in _ENDS or word.endswith("=("):
            found |= overrides(sentence, strict=False)
            sentence = []
        elif "[@]" not in word:
            sentence.append(word)
    return found | overrides(sentence, strict=False)


def _put_in(word: str, known: Mapping[str, str]) -> str:
    """A word with the variables that are known, none of which may make a few lines fill the memory."""

    def value(name: re.Match[str]) -> str:
        return known.get(name.group(1) or name.group(2), name.group(0))

    length = sum(len(value(name)) for name in _VARIABLE.finditer(word))
    return word if length > _LONGEST else _VARIABLE.sub(value, word)


def scalar(text: str) -> Any:
    """A value as YAML and Hydra write it: null, a truth value, a number, a list of such in brackets, else text."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text[:1] == "[" and text[-1:] == "]":
        items = re.findall(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""", text[1:-1])
        return [item if item.strip()[:1] == "[" else scalar(item) for item in items if item.strip()]
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
