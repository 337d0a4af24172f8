"""Parses the query language of pages, API, export and command line (`q=`).

    score<0.2  len>=900  tokens>512  adv=0  n=3      numbers; `=` is equal to six decimal places
    step:100..200  score:0..0.5                      ranges, both ends included, either may be left out
    split:eval  group:7  prompt:KEY                  which samples
    source:gsm8k  reason:"reward hack"               data source (part of its name), reason of a flag
    is:truncated  no:answer                          properties, see `PROPERTY_NAMES` and `MISSING_NAMES`
    acc=1  extra.lang=zh  extra.note:loop            any key that the run logged
    quokka  "exact phrase"  /regex/                  text of prompt and response
    -x  x y  x or y  (x)                             not, and, or

A bare word in lower case ignores case; a word with a capital letter does not. A phrase is matched exactly, a regular
expression (Rust syntax, linear time) as it is written. A comparison is false if the number was not recorded.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _

from rollouts.lib import MAX_INT64
from rollouts.query import ast
from rollouts.query.grammar import (
    ASCII_SIGNS,
    get_grammar_parser,
    parse_key_name,
    parse_number,
    split_comparison,
    unquote_text,
)

if TYPE_CHECKING:
    from lark import Token, Tree

MAX_CHARS: Final = 4_000
MAX_REGEX_CHARS: Final = 1_000
MAX_DEPTH: Final = 24
MAX_TERMS: Final = 64


def parse_query(q: str) -> ast.Query:
    """Returns the parsed query. Raises InvalidQueryError, never another exception."""
    if len(q) > MAX_CHARS:
        message = _("The query has {count} characters; the limit is {most}.")
        raise ast.InvalidQueryError(message.format(count=f"{len(q):,}", most=f"{MAX_CHARS:,}"), (0, len(q)))
    for at, character in enumerate(q):
        if character == "\x00" or "\ud800" <= character <= "\udfff":
            message = _("The query contains an invalid character (NUL or an unpaired surrogate).")
            raise ast.InvalidQueryError(message, (at, at + 1))
    root = AstBuilder(q).build()
    leaves = tuple(ast.collect_leaves(root)) if root else ()
    if len(leaves) > MAX_TERMS:
        message = _("The query has {count} terms; the limit is {most}.")
        raise ast.InvalidQueryError(message.format(count=len(leaves), most=MAX_TERMS), (0, len(q)))
    inferred = ast.PropertyTerm("truncated") in leaves
    notes = (_("is:truncated also matches samples whose truncation was inferred (trunc?)."),) if inferred else ()
    return ast.Query(q, root, leaves, notes)


class AstBuilder:
    """Converts lark's tree of one query to nodes."""

    def __init__(self, q: str) -> None:
        self.q = q

    def build(self) -> ast.QueryNode | None:
        from lark.exceptions import UnexpectedCharacters, UnexpectedToken

        try:
            tree = get_grammar_parser().parse(self.q)
        except UnexpectedCharacters as error:
            raise self.build_character_error(error.pos_in_stream or 0) from None
        except UnexpectedToken as error:
            raise self.build_token_error(error.token) from None
        return self.build_node(tree.children[0], 0) if tree.children else None  # type: ignore[arg-type]

    def build_node(self, tree: Tree[Token], depth: int) -> ast.QueryNode:
        if depth > MAX_DEPTH:
            message = _("The query is nested more than {most} levels deep. Remove some parentheses.")
            raise ast.InvalidQueryError(message.format(most=MAX_DEPTH), (0, len(self.q)))
        match tree.data:
            case "either" | "both":
                parts = tuple(self.build_node(part, depth + 1) for part in tree.children)  # type: ignore[arg-type]
                return ast.Or(parts) if tree.data == "either" else ast.And(parts)
            case "negated":
                return ast.Not(self.build_node(tree.children[0], depth + 1))  # type: ignore[arg-type]
            case _:
                return build_term(str(tree.data), tree.children)  # type: ignore[arg-type]

    def build_token_error(self, token: Token) -> ast.InvalidQueryError:
        end = len(self.q)
        if token.type != "$END":
            return self.build_character_error(token.start_pos or 0, get_span(token)[1])
        text = self.q.rstrip()
        start = max(0, len(text) - len(text.rsplit(maxsplit=1)[-1])) if text else 0
        if text.translate(ASCII_SIGNS).count("(") > text.translate(ASCII_SIGNS).count(")"):
            return ast.InvalidQueryError(_("Missing closing parenthesis. Add `)`."), (start, end))
        message = _("The query is incomplete: a value or a term is missing at the end.")
        return ast.InvalidQueryError(message, (start, end))

    def build_character_error(self, at: int, end: int | None = None) -> ast.InvalidQueryError:
        bad = self.q[at : at + 1]
        end = end or min(len(self.q), at + 1)
        if bad in '"“”＂「『':
            return ast.InvalidQueryError(_("Missing closing quote."), (at, len(self.q)))
        if bad == "/":
            message = _("The regular expression has no closing `/`. To search for a slash, use quotes.")
            return ast.InvalidQueryError(message, (at, len(self.q)))
        if bad in ")）":
            before = self.q[:at].rstrip()
            if before.endswith(("(", "（")):
                return ast.InvalidQueryError(_("The parentheses are empty."), (len(before) - 1, end))
            return ast.InvalidQueryError(_("Missing opening parenthesis."), (at, end))
        message = _("Unexpected `{what}`. Quote it to search for it as text.")
        return ast.InvalidQueryError(message.format(what=self.q[at:end]), (at, end))


def get_span(token: Token) -> ast.Span:
    start = token.start_pos or 0
    return start, token.end_pos if token.end_pos is not None else start + len(token)


def build_term(kind: str, tokens: list[Token]) -> ast.QueryNode:
    head = str(tokens[0])
    match kind:
        case "word":
            return ast.TextTerm(head, any_case=head == head.lower())
        case "phrase":
            if text := unquote_text(head):
                return ast.TextTerm(text, any_case=False)
            raise ast.InvalidQueryError(_("The quotes are empty. Add text between them."), get_span(tokens[0]))
        case "regex":
            return build_regex_term(head[1:-1].replace(r"\/", "/"), get_span(tokens[0]))
    text, value_span = unquote_text(str(tokens[1])), get_span(tokens[1])
    span = get_span(tokens[0])[0], value_span[1]
    return build_comparison(head, text, span, value_span) if kind == "compared" else build_named_term(head, text, span)


def build_regex_term(pattern: str, span: ast.Span) -> ast.RegexTerm:
    from rollouts.query.body_reader import find_regex_error

    if len(pattern) > MAX_REGEX_CHARS:
        message = _("The regular expression has more than {most} characters.")
        raise ast.InvalidQueryError(message.format(most=f"{MAX_REGEX_CHARS:,}"), span)
    if complaint := find_regex_error(pattern):
        raise ast.InvalidQueryError(_("Invalid regular expression: {complaint}.").format(complaint=complaint), span)
    return ast.RegexTerm(pattern)


def build_comparison(head: str, text: str, span: ast.Span, value_span: ast.Span) -> ast.QueryNode:
    """Builds the term of `key<number` or `key=text`."""
    key, sign = split_comparison(head)
    number = parse_number(text)
    if key not in ast.NUMBER_FIELDS:
        return build_logged_key_term(key, sign, text, span)
    if number is None:
        message = _("`{key}` needs a number, for example `{key}{sign}1`.")
        raise ast.InvalidQueryError(message.format(key=key, sign=sign), value_span)
    number = check_integer(key, number, value_span)
    near = 0 if key in ast.INTEGER_FIELDS else ast.compute_tolerance(number)
    match sign:
        case "<":
            return ast.RangeTerm(key, None, number - near, open_high=True)
        case "<=":
            return ast.RangeTerm(key, None, number + near)
        case ">":
            return ast.RangeTerm(key, number + near, None, open_low=True)
        case ">=":
            return ast.RangeTerm(key, number - near, None)
        case "=":
            return ast.RangeTerm(key, number - near, number + near)
        case _:
            return ast.And((ast.RecordedTerm(key), ast.Not(ast.RangeTerm(key, number - near, number + near))))


def check_integer(key: str, number: float, span: ast.Span) -> float:
    if key not in ast.INTEGER_FIELDS:
        return number
    if number != int(number) or abs(number) > MAX_INT64:
        raise ast.InvalidQueryError(_("`{key}` needs a whole number.").format(key=key), span)
    return int(number)


def build_logged_key_term(key: str, sign: str, text: str, span: ast.Span) -> ast.QueryNode:
    name, number = parse_key_name(key), parse_number(text)
    if not name:
        raise ast.InvalidQueryError(_("`extra.` needs a logged key, for example `extra.lang=zh`."), span)
    if sign in ("<", "<=", ">", ">=") and number is None:
        message = _("`{name}{sign}` needs a number; text can only be compared with `=`.")
        raise ast.InvalidQueryError(message.format(name=name, sign=sign), span)
    if sign == "!=":
        logged = ast.LoggedKeyTerm(name, "known", "", None, span)
        return ast.And((logged, ast.Not(ast.LoggedKeyTerm(name, "=", text, number, span))))
    return ast.LoggedKeyTerm(name, sign, text, number, span)


def build_named_term(head: str, text: str, span: ast.Span) -> ast.QueryNode:
    """Builds the term of `name:value`. The error for an unknown name suggests a similar one."""
    name = head.rstrip()[:-1]
    if name.startswith("extra."):
        return build_logged_key_term(name, ":", text, span)
    if name in ast.NUMBER_FIELDS:
        return build_range(name, text, span)
    if name == "is":
        return ast.PropertyTerm(check_choice("is", text.lower(), ast.PROPERTY_NAMES, span))
    if name == "no":
        text = ast.MISSING_ALIASES.get(text.lower(), text.lower())
        return ast.MissingTerm(check_choice("no", text, ast.MISSING_NAMES, span))
    if name == "split":
        check_choice("split", text, ("train", "eval"), span)
    if name in ast.NAME_FIELDS:
        return ast.NameTerm(name, text, span)
    message = _(
        "Unknown field `{name}:`. For a logged key use `extra.{name}:…`; to search for it as text, put it in quotes."
    )
    if similar := find_similar(name, (*ast.NUMBER_FIELDS, *ast.NAME_FIELDS, "is", "no")):
        message = _(
            "Unknown field `{name}:`. Did you mean `{meant}`? For a logged key use `extra.{name}:…`; to search for "
            "it as text, put it in quotes."
        )
    raise ast.InvalidQueryError(message.format(name=name, meant=similar), span)


def build_range(name: str, text: str, span: ast.Span) -> ast.RangeTerm:
    """Builds the term of `100..200`, `100..`, `..200` or a single number."""
    low_text, dots, high_text = text.translate(ASCII_SIGNS).partition("..")
    low, high = parse_number(low_text), parse_number(high_text if dots else low_text)
    if (low_text and low is None) or (high_text and high is None) or low is high is None:
        message = _("`{name}:` needs a number or a range, for example `{name}:1` or `{name}:1..5`.")
        raise ast.InvalidQueryError(message.format(name=name), span)
    if low is not None and high is not None and low > high:
        message = _("The range is reversed. Put the smaller number first: `{name}:{last}..{first}`.")
        raise ast.InvalidQueryError(message.format(name=name, last=high_text, first=low_text), span)
    near = 0.0 if name in ast.INTEGER_FIELDS else 1.0
    low = None if low is None else check_integer(name, low - near * ast.compute_tolerance(low), span)
    high = None if high is None else check_integer(name, high + near * ast.compute_tolerance(high), span)
    return ast.RangeTerm(name, low, high)


def check_choice(name: str, text: str, choices: tuple[str, ...], span: ast.Span) -> str:
    if text in choices:
        return text
    message = _("Unknown value `{name}:{text}`. Available: {listed}.")
    if similar := find_similar(text, choices):
        message = _("Unknown value `{name}:{text}`. Did you mean `{meant}`? Available: {listed}.")
    listed = ", ".join(f"{name}:{choice}" for choice in choices)
    raise ast.InvalidQueryError(message.format(name=name, text=text, meant=similar, listed=listed), span)


def find_similar(word: str, choices: tuple[str, ...]) -> str:
    return next(iter(get_close_matches(word, choices, n=1)), "")
