"""Parses the query language of pages, API, export and command line (`q=`).

    score<0.2  len>=900  tokens>512  adv=0  n=3      numbers; `=` is equal to six decimal places
    step:100..200  score:0..0.5                      ranges, both ends included, either may be left out
    split:eval  group:7  prompt:KEY                  which samples
    source:gsm8k  source=gsm8k                       part of the name of the data source, the whole name
    reason:"reward hack"                             reason of a flag
    is:truncated  no:answer                          properties, see `PROPERTY_NAMES` and `MISSING_NAMES`
    label:correct  label.quality>=3  author:mina     labels, see `label_terms.py`
    acc=1  extra.lang=zh  extra.note:loop            any key that the run logged
    score.v2<0.5  score.v2!=score  disagrees:score.v2   re-scores, see `rescore_terms.py`
    quokka  "exact phrase"  /regex/                  text of prompt and response
    split:train,eval                                 any value of a list
    -x  x y  x or y  (x)                             not, and, or

A bare word in lower case ignores case; a word with a capital letter does not. A phrase is matched exactly, a regular
expression (Rust syntax, linear time) as it is written. A comparison is false if the number was not recorded.

A query about other objects has another `Vocabulary`; `rollouts/runs` has the one of runs.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _

from rollouts.lib import MAX_INT64, compute_tolerance
from rollouts.query import ast
from rollouts.query.body_scan import find_regex_error
from rollouts.query.grammar import (
    ASCII_SIGNS,
    get_grammar_parser,
    parse_age,
    parse_key_name,
    parse_number,
    split_comparison,
    unquote_text,
)
from rollouts.query.label_terms import LABEL_PREFIX, build_label_term, build_other_label
from rollouts.query.vocabulary import SAMPLE_VOCABULARY, Vocabulary

if TYPE_CHECKING:
    from lark import Token, Tree

MAX_CHARS: Final = 4_000
MAX_REGEX_CHARS: Final = 1_000
MAX_DEPTH: Final = 24
MAX_TERMS: Final = 64


def parse_query(q: str, vocabulary: Vocabulary = SAMPLE_VOCABULARY) -> ast.Query:
    """Returns the parsed query. Raises InvalidQueryError, never another exception."""
    if len(q) > MAX_CHARS:
        message = _("The query has {count} characters; the limit is {limit}.")
        raise ast.InvalidQueryError(message.format(count=f"{len(q):,}", limit=f"{MAX_CHARS:,}"), (0, len(q)))
    for at, character in enumerate(q):
        if character == "\x00" or "\ud800" <= character <= "\udfff":
            message = _("The query contains an invalid character (NUL or an unpaired surrogate).")
            raise ast.InvalidQueryError(message, (at, at + 1))
    root = AstBuilder(q, vocabulary).build()
    leaves = tuple(ast.collect_leaves(root)) if root else ()
    if len(leaves) > MAX_TERMS:
        message = _("The query has {count} terms; the limit is {limit}.")
        raise ast.InvalidQueryError(message.format(count=len(leaves), limit=MAX_TERMS), (0, len(q)))
    inferred = ast.PropertyTerm("truncated") in leaves
    notes = (_("is:truncated also matches samples whose truncation was inferred (trunc?)."),) if inferred else ()
    return ast.Query(q, root, leaves, notes)


class AstBuilder:
    """Converts lark's tree of one query to nodes."""

    def __init__(self, q: str, vocabulary: Vocabulary = SAMPLE_VOCABULARY) -> None:
        self.q = q
        self.vocabulary = vocabulary

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
            message = _("The query is nested more than {limit} levels deep. Remove some parentheses.")
            raise ast.InvalidQueryError(message.format(limit=MAX_DEPTH), (0, len(self.q)))
        match tree.data:
            case "either" | "both":
                parts = tuple(self.build_node(part, depth + 1) for part in tree.children)  # type: ignore[arg-type]
                return ast.Or(parts) if tree.data == "either" else ast.And(parts)
            case "negated":
                return ast.Not(self.build_node(tree.children[0], depth + 1))  # type: ignore[arg-type]
            case _:
                return build_term(str(tree.data), tree.children, self.vocabulary)  # type: ignore[arg-type]

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


def build_term(kind: str, tokens: list[Token], vocabulary: Vocabulary) -> ast.QueryNode:
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
    has_commas = tokens[1].type == "VALUE" and "," in text.translate(ASCII_SIGNS)
    if kind == "compared":
        key, sign = split_comparison(head)
        if has_commas and vocabulary.has_labels and key.startswith(LABEL_PREFIX) and sign in ("=", "!="):
            values = [part for part in text.translate(ASCII_SIGNS).split(",") if part] or [text]
            equal = tuple(build_label_term(key, "=", part, span) for part in values)
            return ast.Or(equal) if sign == "=" else build_other_label(key, ast.Or(equal), span)
        return build_comparison(head, text, span, value_span, vocabulary)
    name = head.rstrip()[:-1]
    is_list = has_commas and takes_list(name, vocabulary)
    texts = [part for part in text.translate(ASCII_SIGNS).split(",") if part] if is_list else [text]
    parts = tuple(build_named_term(name, part, span, vocabulary) for part in texts or [text])
    return parts[0] if len(parts) == 1 else ast.Or(parts)


def takes_list(name: str, vocabulary: Vocabulary) -> bool:
    """Returns whether a comma separates values. In a logged text it is a comma."""
    is_label = vocabulary.has_labels and name.startswith(LABEL_PREFIX)
    return vocabulary.keys_have_names or is_label or name in vocabulary.field_names


def build_regex_term(pattern: str, span: ast.Span) -> ast.RegexTerm:
    if len(pattern) > MAX_REGEX_CHARS:
        message = _("The regular expression has more than {limit} characters.")
        raise ast.InvalidQueryError(message.format(limit=f"{MAX_REGEX_CHARS:,}"), span)
    if error := find_regex_error(pattern):
        raise ast.InvalidQueryError(_("Invalid regular expression: {error}.").format(error=error), span)
    return ast.RegexTerm(pattern)


def build_comparison(
    head: str, text: str, span: ast.Span, value_span: ast.Span, vocabulary: Vocabulary
) -> ast.QueryNode:
    """Builds the term of `key<number` or `key=text`."""
    key, sign = split_comparison(head)
    if vocabulary.has_labels and key.startswith(LABEL_PREFIX):
        return build_label_term(key, sign, text, span)
    if vocabulary.keys_have_names and key in (*vocabulary.name_fields, "is", "no") and sign in ("=", "!="):
        term = build_named_term(key, text, span, vocabulary)
        return ast.Not(term) if sign == "!=" else term
    if vocabulary.has_labels and key == "source" and sign in ("=", "!="):
        source = ast.NameTerm(key, text, span, is_exact=True)
        return ast.Not(source) if sign == "!=" else source
    if key in vocabulary.age_fields:
        return build_age_comparison(key, sign, text, value_span)
    number = parse_number(text)
    if key not in vocabulary.number_fields:
        return build_logged_key_term(key, sign, text, span, vocabulary)
    if number is None:
        message = _("`{key}` needs a number, for example `{key}{sign}1`.")
        raise ast.InvalidQueryError(message.format(key=key, sign=sign), value_span)
    number = check_integer(key, number, value_span, vocabulary)
    near = 0 if key in vocabulary.integer_fields else compute_tolerance(number)
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


def build_age_comparison(key: str, sign: str, text: str, span: ast.Span) -> ast.QueryNode:
    """Builds the term of `updated<2h`: less than two hours ago."""
    seconds = parse_age(text)
    if seconds is None or sign in ("=", "!="):
        message = _("`{key}` needs an age, for example `{key}<2h` or `{key}>7d` (s, m, h, d, w).")
        raise ast.InvalidQueryError(message.format(key=key), span)
    is_upper = sign in ("<", "<=")
    return ast.RangeTerm(key, None if is_upper else seconds, seconds if is_upper else None, sign == ">", sign == "<")


def check_integer(key: str, number: float, span: ast.Span, vocabulary: Vocabulary) -> float:
    if key not in vocabulary.integer_fields:
        return number
    if number != int(number) or abs(number) > MAX_INT64:
        raise ast.InvalidQueryError(_("`{key}` needs a whole number.").format(key=key), span)
    return int(number)


def build_logged_key_term(key: str, sign: str, text: str, span: ast.Span, vocabulary: Vocabulary) -> ast.QueryNode:
    name, number = parse_key_name(key), parse_number(text)
    if name in ("", "config.", "metric."):
        message = _("`{prefix}.` needs a key, for example `{example}`.")
        raise ast.InvalidQueryError(message.format(prefix=vocabulary.key_prefix, example=vocabulary.key_example), span)
    # `score.v2<score` compares two numbers, see `rescore_terms.py`.
    is_other_number = vocabulary.has_labels and (text in vocabulary.number_fields or "." in text)
    if sign in ("<", "<=", ">", ">=") and number is None and not is_other_number:
        message = _("`{name}{sign}` needs a number; text can only be compared with `=`.")
        raise ast.InvalidQueryError(message.format(name=name, sign=sign), span)
    if sign == "!=":
        logged = ast.LoggedKeyTerm(name, "known", "", None, span)
        return ast.And((logged, ast.Not(build_logged_value(name, "=", text, span, vocabulary))))
    return build_logged_value(name, sign, text, span, vocabulary)


def build_logged_value(name: str, sign: str, text: str, span: ast.Span, vocabulary: Vocabulary) -> ast.QueryNode:
    """Builds the term of one value. `2..4` is a range of numbers, or that text."""
    value = ast.LoggedKeyTerm(name, sign, text, parse_number(text), span)
    low_text, dots, high_text = text.translate(ASCII_SIGNS).partition("..")
    low, high = parse_number(low_text), parse_number(high_text)
    if not vocabulary.has_labels or not dots or low is None or high is None or sign not in (":", "="):
        return value
    bounds = ((">=", low_text, low), ("<=", high_text, high))
    return ast.Or((value, ast.And(tuple(ast.LoggedKeyTerm(name, *bound, span) for bound in bounds))))


def build_named_term(name: str, text: str, span: ast.Span, vocabulary: Vocabulary) -> ast.QueryNode:
    """Builds the term of `name:value`. The error for an unknown name suggests a similar one."""
    if vocabulary.has_labels and name.startswith(LABEL_PREFIX):
        return build_label_term(name, ":", text, span)
    if name.startswith(f"{vocabulary.key_prefix}."):
        return build_logged_key_term(name, ":", text, span, vocabulary)
    if name in vocabulary.number_fields:
        return build_range(name, text, span, vocabulary)
    if name in vocabulary.age_fields:
        return build_age_range(name, text, span)
    if name == "is":
        return ast.PropertyTerm(check_choice("is", text.lower(), vocabulary.property_names, span))
    if name == "no":
        text = dict(vocabulary.missing_aliases).get(text.lower(), text.lower())
        return ast.MissingTerm(check_choice("no", text, vocabulary.missing_names, span))
    if choices := vocabulary.get_choices(name):
        check_choice(name, text, choices, span)
    if name in vocabulary.name_fields:
        return ast.NameTerm(name, text, span)
    if vocabulary.keys_have_names:
        return build_logged_key_term(name, ":", text, span, vocabulary)
    message = _(
        "Unknown field `{name}:`. For a logged key use `extra.{name}:…`; to search for it as text, put it in quotes."
    )
    if similar := find_similar(name, vocabulary.field_names):
        message = _(
            "Unknown field `{name}:`. Did you mean `{similar}`? For a logged key use `extra.{name}:…`; to search for "
            "it as text, put it in quotes."
        )
    raise ast.InvalidQueryError(message.format(name=name, similar=similar), span)


def build_age_range(name: str, text: str, span: ast.Span) -> ast.RangeTerm:
    low_text, dots, high_text = text.translate(ASCII_SIGNS).partition("..")
    low, high = parse_age(low_text), parse_age(high_text)
    if not dots or (low_text and low is None) or (high_text and high is None) or low is high is None:
        message = _("`{name}:` needs a range of ages, for example `{name}:1d..7d`.")
        raise ast.InvalidQueryError(message.format(name=name), span)
    return ast.RangeTerm(name, low, high)


def build_range(name: str, text: str, span: ast.Span, vocabulary: Vocabulary) -> ast.RangeTerm:
    """Builds the term of `100..200`, `100..`, `..200` or a single number."""
    low_text, dots, high_text = text.translate(ASCII_SIGNS).partition("..")
    low, high = parse_number(low_text), parse_number(high_text if dots else low_text)
    if (low_text and low is None) or (high_text and high is None) or low is high is None:
        message = _("`{name}:` needs a number or a range, for example `{name}:1` or `{name}:1..5`.")
        raise ast.InvalidQueryError(message.format(name=name), span)
    if low is not None and high is not None and low > high:
        message = _("The range is reversed. Put the smaller number first: `{name}:{last}..{first}`.")
        raise ast.InvalidQueryError(message.format(name=name, last=high_text, first=low_text), span)
    near = 0.0 if name in vocabulary.integer_fields else 1.0
    low = None if low is None else check_integer(name, low - near * compute_tolerance(low), span, vocabulary)
    high = None if high is None else check_integer(name, high + near * compute_tolerance(high), span, vocabulary)
    return ast.RangeTerm(name, low, high)


def check_choice(name: str, text: str, choices: tuple[str, ...], span: ast.Span) -> str:
    if text in choices:
        return text
    message = _("Unknown value `{name}:{text}`. Available: {values}.")
    if similar := find_similar(text, choices):
        message = _("Unknown value `{name}:{text}`. Did you mean `{similar}`? Available: {values}.")
    values = ", ".join(f"{name}:{choice}" for choice in choices)
    raise ast.InvalidQueryError(message.format(name=name, text=text, similar=similar, values=values), span)


def find_similar(word: str, choices: tuple[str, ...]) -> str:
    return next(iter(get_close_matches(word, choices, n=1)), "")
