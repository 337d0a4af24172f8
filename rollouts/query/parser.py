"""One query language for pages, API, export and command line (`q=`).

    score<0.2  len>=900  tokens>512  adv=0  n=3      numbers; `=` is equal to six decimal places
    step:100..200  score:0..0.5                      ranges, both ends included, either may be left out
    split:eval  group:7  prompt:KEY                  which samples
    source:gsm8k  reason:"reward hack"               data source (part of its name), reason of a flag
    is:truncated  no:answer                          properties, see `nodes.PROPERTIES` and `nodes.MISSING`
    acc=1  extra.lang=zh  extra.note:loop            any key that the run logged
    quokka  "exact phrase"  /regex/                  text of prompt and response
    -x  x y  x or y  (x)                             not, and, or

A bare word in lower case ignores case, one with a capital does not; a phrase is matched exactly, a regular expression
(Rust syntax, linear time) as it is written. A comparison is false where the number was not recorded.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _

from rollouts.query.ast import (
    INTEGER_FIELDS,
    MISSING_ALIASES,
    MISSING_NAMES,
    NAME_FIELDS,
    NUMBER_FIELDS,
    PROPERTY_NAMES,
    And,
    InvalidQueryError,
    LoggedKeyTerm,
    MissingTerm,
    NameTerm,
    Not,
    Or,
    PropertyTerm,
    Query,
    QueryNode,
    RangeTerm,
    RecordedTerm,
    RegexTerm,
    Span,
    TextTerm,
    collect_leaves,
    compute_tolerance,
)
from rollouts.query.grammar import ASCII_SIGNS, get_grammar_parser

if TYPE_CHECKING:
    from lark import Token, Tree

MOST_CHARACTERS: Final = 4_000
MOST_REGEX: Final = 1_000
MOST_DEPTH: Final = 24
MOST_TERMS: Final = 64
BIGGEST: Final = 2**63 - 1


def parse_query(q: str) -> Query:
    """The query, or BadQuery with a sentence and the span of the bad part; never another exception."""
    if len(q) > MOST_CHARACTERS:
        said = _("The query has {count} characters; the limit is {most}.")
        raise InvalidQueryError(said.format(count=f"{len(q):,}", most=f"{MOST_CHARACTERS:,}"), (0, len(q)))
    for at, character in enumerate(q):
        if character == "\x00" or "\ud800" <= character <= "\udfff":
            raise InvalidQueryError(
                _("The query contains an invalid character (NUL or an unpaired surrogate)."), (at, at + 1)
            )
    root = AstBuilder(q).root()
    found = collect_leaves(root) if root else []
    if len(found) > MOST_TERMS:
        said = _("The query has {count} terms; the limit is {most}.")
        raise InvalidQueryError(said.format(count=len(found), most=MOST_TERMS), (0, len(q)))
    inferred = PropertyTerm("truncated") in found
    notes = (_("is:truncated also matches samples whose truncation was inferred (trunc?)."),) if inferred else ()
    return Query(q, root, notes)


class AstBuilder:
    """Turns lark's tree over one query text into nodes."""

    def __init__(self, q: str) -> None:
        self.q = q

    def root(self) -> QueryNode | None:
        from lark.exceptions import UnexpectedCharacters, UnexpectedToken

        try:
            tree = get_grammar_parser().parse(self.q)
        except UnexpectedCharacters as error:
            raise self.unreadable(error.pos_in_stream or 0) from None
        except UnexpectedToken as error:
            raise self.unexpected(error.token) from None
        return self.node(tree.children[0], 0) if tree.children else None  # type: ignore[arg-type]

    def node(self, tree: Tree[Token], depth: int) -> QueryNode:
        if depth > MOST_DEPTH:
            said = _("The query is nested more than {most} levels deep. Remove some parentheses.")
            raise InvalidQueryError(said.format(most=MOST_DEPTH), (0, len(self.q)))
        match tree.data:
            case "either" | "both":
                parts = tuple(self.node(part, depth + 1) for part in tree.children)  # type: ignore[arg-type]
                return Or(parts) if tree.data == "either" else And(parts)
            case "negated":
                return Not(self.node(tree.children[0], depth + 1))  # type: ignore[arg-type]
            case _:
                return self.leaf(str(tree.data), tree.children)  # type: ignore[arg-type]

    def leaf(self, kind: str, tokens: list[Token]) -> QueryNode:
        head = str(tokens[0])
        match kind:
            case "word":
                return TextTerm(head, any_case=head == head.lower())
            case "phrase":
                return self.phrase(tokens[0])
            case "regex":
                return self.regex(tokens[0])
            case "compared":
                return compared(tokens[0], tokens[1])
            case _:
                return named(tokens[0], tokens[1])

    def phrase(self, token: Token) -> TextTerm:
        if text := unquote_text(str(token)):
            return TextTerm(text, any_case=False)
        raise InvalidQueryError(_("The quotes are empty. Add text between them."), span_of(token))

    def regex(self, token: Token) -> RegexTerm:
        pattern = str(token)[1:-1].replace(r"\/", "/")
        if len(pattern) > MOST_REGEX:
            said = _("The regular expression has more than {most} characters.")
            raise InvalidQueryError(said.format(most=f"{MOST_REGEX:,}"), span_of(token))
        if complaint := refused_regex(pattern):
            said = _("Invalid regular expression: {complaint}.")
            raise InvalidQueryError(said.format(complaint=complaint), span_of(token))
        return RegexTerm(pattern)

    def unexpected(self, token: Token) -> InvalidQueryError:
        end = len(self.q)
        if token.type != "$END":
            return self.unreadable(token.start_pos or 0, span_of(token)[1])
        text = self.q.rstrip()
        start = max(0, len(text) - len(text.rsplit(maxsplit=1)[-1])) if text else 0
        if text.translate(ASCII_SIGNS).count("(") > text.translate(ASCII_SIGNS).count(")"):
            return InvalidQueryError(_("Missing closing parenthesis. Add `)`."), (start, end))
        return InvalidQueryError(_("The query is incomplete: a value or a term is missing at the end."), (start, end))

    def unreadable(self, at: int, end: int | None = None) -> InvalidQueryError:
        bad = self.q[at : at + 1]
        end = end or min(len(self.q), at + 1)
        if bad in '"“”＂「『':
            return InvalidQueryError(_("Missing closing quote."), (at, len(self.q)))
        if bad == "/":
            said = _("The regular expression has no closing `/`. To search for a slash, use quotes.")
            return InvalidQueryError(said, (at, len(self.q)))
        if bad in ")）" and self.q[:at].rstrip().endswith(("(", "（")):
            return InvalidQueryError(_("The parentheses are empty."), (len(self.q[:at].rstrip()) - 1, end))
        if bad in ")）":
            return InvalidQueryError(_("Missing opening parenthesis."), (at, end))
        said = _("Unexpected `{what}`. Quote it to search for it as text.")
        return InvalidQueryError(said.format(what=self.q[at:end]), (at, end))


def span_of(token: Token) -> Span:
    start = token.start_pos or 0
    return start, token.end_pos if token.end_pos is not None else start + len(token)


def unquote_text(text: str) -> str:
    """The inside of a quoted text, where a backslash keeps quotes and backslashes; other text as it is."""
    if text[:1] in ("「", "『"):
        return text[1:-1]
    if text[:1] not in ('"', "“", "”", "＂"):
        return text
    return re.sub(r'\\(["“”＂\\])', r"\1", text[1:-1])


def refused_regex(pattern: str) -> str:
    """Why the scanner's regex engine refuses the pattern; empty when it takes it."""
    import polars as pl

    try:
        pl.Series(["x"]).str.contains(pattern)
    except pl.exceptions.PolarsError as error:
        said = " ".join(str(error).split()).split(" This error occurred")[0]
        return said.rpartition("error: ")[2][:200].rstrip(".") or _("not supported")
    return ""


def number_of(text: str) -> float | None:
    """The finite number that `text` writes, as `0.2`, `1e-3` or `20%`."""
    text = text.translate(ASCII_SIGNS)
    matched = re.fullmatch(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?)([%％]?)", text)
    if not matched:
        return None
    value = float(matched[1]) / (100 if matched[2] else 1)
    return value if abs(value) < 1e300 else None


def compared(head: Token, value: Token) -> QueryNode:
    """`key<number`, `key=text`. Raises BadQuery."""
    key, sign = signed(str(head))
    text = unquote_text(str(value))
    span = span_of(head)[0], span_of(value)[1]
    number = number_of(text)
    if key not in NUMBER_FIELDS:
        return logged(key, sign, text, number, span)
    if number is None:
        said = _("`{key}` needs a number, for example `{key}{sign}1`.")
        raise InvalidQueryError(said.format(key=key, sign=sign), span_of(value))
    return bounds(key, sign, whole(key, number, span_of(value)))


def signed(head: str) -> tuple[str, str]:
    """Key and sign of `key <`, the sign one of `< <= > >= = !=`."""
    key = re.match(r'extra\."(?:\\.|[^"\\])*"|[\w./\-]+', head, re.DOTALL)
    assert key, "the grammar saw a key"
    sign = head[key.end() :].strip().translate(ASCII_SIGNS)
    return key[0], {"==": "=", "≤": "<=", "≦": "<=", "≥": ">=", "≧": ">=", "≠": "!="}.get(sign, sign)


def whole(key: str, number: float, span: Span) -> float:
    if key not in INTEGER_FIELDS:
        return number
    if number != int(number) or abs(number) > BIGGEST:
        raise InvalidQueryError(_("`{key}` needs a whole number.").format(key=key), span)
    return int(number)


def bounds(key: str, sign: str, number: float) -> QueryNode:
    near = 0 if key in INTEGER_FIELDS else compute_tolerance(number)
    match sign:
        case "<":
            return RangeTerm(key, None, number - near, open_high=True)
        case "<=":
            return RangeTerm(key, None, number + near)
        case ">":
            return RangeTerm(key, number + near, None, open_low=True)
        case ">=":
            return RangeTerm(key, number - near, None)
        case "=":
            return RangeTerm(key, number - near, number + near)
        case _:
            return And((RecordedTerm(key), Not(RangeTerm(key, number - near, number + near))))


def logged(key: str, sign: str, text: str, number: float | None, span: Span) -> QueryNode:
    name = unquote_text(key[6:]) if key.startswith("extra.") else key
    if not name:
        raise InvalidQueryError(_("`extra.` needs a logged key, for example `extra.lang=zh`."), span)
    if sign in ("<", "<=", ">", ">=") and number is None:
        said = _("`{name}{sign}` needs a number; text can only be compared with `=`.")
        raise InvalidQueryError(said.format(name=name, sign=sign), span)
    if sign == "!=":
        return And((LoggedKeyTerm(name, "known", "", None, span), Not(LoggedKeyTerm(name, "=", text, number, span))))
    return LoggedKeyTerm(name, sign, text, number, span)


def named(head: Token, value: Token) -> QueryNode:
    """`name:value`. Raises BadQuery, with a suggestion for a misspelt name."""
    name = str(head).rstrip()[:-1]
    text = unquote_text(str(value))
    span = span_of(head)[0], span_of(value)[1]
    if name.startswith("extra."):
        return logged(name, ":", text, number_of(text), span)
    if name in NUMBER_FIELDS:
        return ranged(name, text, span)
    if name == "is":
        return PropertyTerm(one_of("is", text.lower(), PROPERTY_NAMES, span))
    if name == "no":
        return MissingTerm(one_of("no", MISSING_ALIASES.get(text.lower(), text.lower()), MISSING_NAMES, span))
    if name in NAME_FIELDS:
        return NameTerm(name, one_of("split", text, ("train", "eval"), span) if name == "split" else text, span)
    raise InvalidQueryError(unknown(name), span)


def unknown(name: str) -> str:
    """What to say of a name that the language does not have."""
    if close := meant(name, (*NUMBER_FIELDS, *NAME_FIELDS, "is", "no")):
        said = _(
            "Unknown field `{name}:`. Did you mean `{meant}`? For a logged key use `extra.{name}:…`; to search for "
            "it as text, put it in quotes."
        )
        return said.format(name=name, meant=close)
    said = _(
        "Unknown field `{name}:`. For a logged key use `extra.{name}:…`; to search for it as text, put it in quotes."
    )
    return said.format(name=name)


def ranged(name: str, text: str, span: Span) -> RangeTerm:
    """`100..200`, `100..`, `..200` or one number. Raises BadQuery."""
    low, dots, high = text.translate(ASCII_SIGNS).partition("..")
    first, last = number_of(low), number_of(high if dots else low)
    if (low and first is None) or (high and last is None) or first is last is None:
        said = _("`{name}:` needs a number or a range, for example `{name}:1` or `{name}:1..5`.")
        raise InvalidQueryError(said.format(name=name), span)
    if first is not None and last is not None and first > last:
        said = _("The range is reversed. Put the smaller number first: `{name}:{last}..{first}`.")
        raise InvalidQueryError(said.format(name=name, last=high, first=low), span)
    near = 0.0 if name in INTEGER_FIELDS else 1.0
    return RangeTerm(
        name,
        None if first is None else whole(name, first - near * compute_tolerance(first), span),
        None if last is None else whole(name, last + near * compute_tolerance(last), span),
    )


def one_of(name: str, text: str, known: tuple[str, ...], span: Span) -> str:
    if text in known:
        return text
    listed = ", ".join(f"{name}:{word}" for word in known)
    close = meant(text, known)
    said = _("Unknown value `{name}:{text}`. Available: {listed}.")
    if close:
        said = _("Unknown value `{name}:{text}`. Did you mean `{meant}`? Available: {listed}.")
    raise InvalidQueryError(said.format(name=name, text=text, meant=close, listed=listed), span)


def meant(word: str, known: tuple[str, ...]) -> str:
    """The known word that is nearest; empty for none."""
    return next(iter(get_close_matches(word, known, n=1)), "")
