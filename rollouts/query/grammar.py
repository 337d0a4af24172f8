"""The lexical rules of the query language: lark's grammar, quotes, numbers. `parser.py` gives the terms a meaning.

Signs are accepted in their ASCII and full-width forms outside quotes. Inside words they remain as typed.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from rollouts.lib import compute_tolerance
from rollouts.query.ast import NAME_FIELDS, NUMBER_FIELDS

if TYPE_CHECKING:
    from lark import Lark

GRAMMAR = r"""
start: [either]
?either: both (_OR both)*
?both: term (_AND? term)*
?term: leaf
     | _NOT term                 -> negated
     | _OPEN either _CLOSE
?leaf: WORD                      -> word
     | PHRASE                    -> phrase
     | REGEX                     -> regex
     | COMPARED (VALUE | PHRASE) -> compared
     | NAMED (VALUE | PHRASE)    -> named

_OR.6: /or(?=[\s()（）]|$)/i
_AND.6: /and(?=[\s()（）]|$)/i
_NOT.6: /[-－](?=\S)/
_OPEN: /[(（]/
_CLOSE: /[)）]/
PHRASE.4: /"(?:\\.|[^"\\])*"|[“”](?:\\.|[^“”\\])*[“”]|＂(?:\\.|[^＂\\])*＂|「[^」]*」|『[^』]*』/s
REGEX.4: /\/(?:\\.|[^\/\\])+\/(?=[\s()（）]|$)/s
COMPARED.5: /(?:<key>|[^\W\d][\w.\/\-]*)\s*(?:[<=>＜-＞!！][=＝]|[<=>＜-＞≤-≧≠])\s*/s
NAMED.5: /(?:<key>|label-source|[A-Za-z_][A-Za-z0-9_.]*)[:：](?!\/\/)\s*/s
VALUE: /[^\s()（）"“”＂]+/
WORD: /[^\s()（）"“”＂「『\/\-－][^\s()（）"“”＂]*(?:\([^\s()"]*\)[^\s()（）"“”＂]*)*/
_SPACE: /\s+/
%ignore _SPACE
""".replace("<key>", r"""(?:extra|config|metric|label)\.(?:"(?:\\.|[^"\\])*"|[\w.\/\-]+)""")

ASCII_SIGNS = str.maketrans("：，（）＜＞＝！－．", ":,()<>=!-.")
OTHER_SIGNS = {"==": "=", "≤": "<=", "≦": "<=", "≥": ">=", "≧": ">=", "≠": "!="}
TURN_KEYS: Final = ("num_turns", "__num_turns__", "turns")
# Columns of bodies that have no prefix and can be queried like logged keys.
NUMBER_KEYS: Final = ("index", "turn", "policy_version")
TEXT_KEYS: Final = ("group", "trajectory", "ground_truth", "data_source", "finish_reason")
RESERVED_WORDS: Final = (*NUMBER_FIELDS, *NAME_FIELDS, "is", "no", "or", "and")
AGE_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
KEY_PATTERN: Final = re.compile(r"[^\W\d][\w./\-]*")
VALUE_PATTERN: Final = re.compile(r"[\w./\-]+")
MAX_WHOLE_NUMBER: Final = 10**15  # of floats; larger ones are written with an exponent


@cache
def get_grammar_parser() -> Lark:
    from lark import Lark

    return Lark(GRAMMAR, parser="lalr", maybe_placeholders=False, propagate_positions=True)


def unquote_text(text: str) -> str:
    """Returns the content of a quoted text, in which a backslash escapes quotes and backslashes; else the text."""
    if text[:1] in ("「", "『"):
        return text[1:-1]
    if text[:1] not in ('"', "“", "”", "＂"):
        return text
    return re.sub(r'\\(["“”＂\\])', r"\1", text[1:-1])


def quote_value(text: str) -> str:
    """Returns a value as the query language writes it, in quotes if it needs them."""
    if VALUE_PATTERN.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def format_number(number: float) -> str:
    """Returns a number as the query language writes it, with as many digits as `=` needs to find it."""
    if isinstance(number, int) or (number.is_integer() and abs(number) < MAX_WHOLE_NUMBER):
        return str(int(number))
    short = f"{number:.6g}"
    is_found = abs(float(short) - number) <= compute_tolerance(number) / 2
    return short if is_found else f"{number:.7g}"  # always within the tolerance


def format_key(name: str) -> str:
    """Returns a logged key as the query language writes it. `parse_key_name` is the inverse."""
    is_plain = KEY_PATTERN.fullmatch(name) and name not in RESERVED_WORDS and not name.startswith("label.")
    return name if is_plain else f"extra.{quote_value(name)}"


def parse_key_name(key: str) -> str:
    """Returns the name of a logged key as the run logged it, from `name` or `extra.name`. `config.` and `metric.` stay:
    they choose between two keys of a run."""
    prefix, _, name = key.partition(".")
    if prefix == "extra" and key != prefix:
        return unquote_text(name)
    return f"{prefix}.{unquote_text(name)}" if name[:1] == '"' else key


def parse_age(text: str) -> float | None:
    """Returns the seconds that are written as `90s`, `30m`, `2h`, `1.5d` or `4w`."""
    matched = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)([smhdw])", text.translate(ASCII_SIGNS).lower())
    return float(matched[1]) * AGE_UNITS[matched[2]] if matched and len(matched[1]) < 12 else None


def list_key_aliases(key: str) -> tuple[str, ...]:
    return TURN_KEYS if key == "turns" else (key,)


def parse_number(text: str) -> float | None:
    """Returns the finite number that is written as `0.2`, `1e-3` or `20%`."""
    matched = re.fullmatch(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?)([%％]?)", text.translate(ASCII_SIGNS))
    if not matched:
        return None
    value = float(matched[1]) / (100 if matched[2] else 1)
    return value if abs(value) < 1e300 else None


def split_comparison(head: str) -> tuple[str, str]:
    """Returns key and sign of `key <`. The sign is one of `< <= > >= = !=`."""
    key = re.match(r'(?:extra|config|metric|label)\."(?:\\.|[^"\\])*"|[\w./\-]+', head, re.DOTALL)
    assert key, "the grammar requires a key"
    sign = head[key.end() :].strip().translate(ASCII_SIGNS)
    return key[0], OTHER_SIGNS.get(sign, sign)
