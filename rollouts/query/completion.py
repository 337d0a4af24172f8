"""What may follow in the query box: names with their type and range, values with the samples they would leave."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from django.db.models import Count, Max, Min
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rollouts.errors import InvalidInputError
from rollouts.models import Flag, Run
from rollouts.query import logged_keys, search
from rollouts.query.ast import (
    INTEGER_FIELDS,
    MISSING_NAMES,
    NAME_FIELDS,
    NUMBER_FIELDS,
    PERSONAL_PROPERTIES,
    PROPERTY_NAMES,
)
from rollouts.query.grammar import ASCII_SIGNS
from rollouts.query.logged_keys import LoggedKey
from rollouts.query.parser import parse_query
from rollouts.query.sql import NUMBER_COLUMNS
from rollouts.samples import PROPERTY_CATALOG

MOST: Final = 14
MOST_COUNTED: Final = 200_000  # samples over which values are still counted while somebody types
MOST_LOOKED_AT: Final = 50_000  # of more than can be counted, the newest tell what values there are
COMPARED: Final = re.compile(r'(extra\."(?:\\.|[^"\\])*"|[^\W\d][\w./\-]*)([<>=!≤≥≠]+)(.*)', re.DOTALL)
NAMED: Final = re.compile(r"([A-Za-z_][\w.]*):(.*)", re.DOTALL)
ABOUT: Final = {
    "score": N_("reward of the response"), "len": N_("length in characters"), "tokens": N_("length in tokens"),
    "adv": N_("mean advantage"), "n": N_("index in its group"), "step": N_("step of the run"),
    "split": N_("train or eval"), "group": N_("responses to one prompt"), "prompt": N_("prompt key"),
    "source": N_("data source (part of its name)"), "reason": N_("flag reason"), "is": N_("property"),
    "no": N_("missing field"),
}  # fmt: skip
PROPERTY: Final = {one.term: one.about for one in PROPERTY_CATALOG} | {
    "is:flagged": N_("flagged by a user"), "is:correct": N_("by the project's correctness rule"),
    "is:wrong": N_("by the project's correctness rule"), "is:final": N_("last sample of its trajectory"),
    "is:intermediate": N_("not the last sample of its trajectory"), "is:tokens": N_("token ids were recorded"),
    "is:pinned": N_("from a pinned step"), "is:reused": N_("from a replayed step"),
    "is:unseen": N_("not viewed by you"), "is:seen": N_("viewed by you"),
    "is:fine": N_("marked as OK by you"), "is:flagged-by-others": N_("flagged by another user"),
    "no:score": N_("not scored"), "no:text": N_("only tokens were recorded"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """`text` takes the place of the typed term; `whole` when it ends it. `count` is how many samples it would leave."""

    text: str
    kind: str
    detail: str = ""
    count: int | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class QueryCompletion:
    """`choices` for the characters from `start` to `end` of the query."""

    start: int
    end: int
    choices: tuple[CompletionChoice, ...]


@dataclass(frozen=True, slots=True)
class CompletionContext:
    """Where is asked: everything there, and what the other terms of the query leave of it; `alone` without any."""

    every: search.QueryResult
    rest: search.QueryResult
    counting: bool
    alone: bool

    def left(self, terms: Iterable[str]) -> list[int | None]:
        """How many samples each term, answered by columns, would leave; None where counting would take too long."""
        asked = list(terms)
        if not self.counting:
            return [None] * len(asked)
        tests = {f"n{at}": Count("pk", filter=self.rest.build_term_condition(term)) for at, term in enumerate(asked)}
        counts = self.rest.samples.order_by().aggregate(**tests) if tests else {}
        return [counts[f"n{at}"] for at in range(len(asked))]

    def knows(self, name: str) -> bool:
        """Whether this property can be asked: some depend on who asks."""
        return name not in PERSONAL_PROPERTIES or self.every.scope.reader is not None

    def values(self, column: str, most: int = MOST) -> list[tuple[Any, int]]:
        """[(value, samples)], the most frequent first."""
        there = self.rest.samples.order_by().exclude(**{column: "" if column in ("group", "data_source") else None})
        rows = there.values(column).annotate(count=Count("pk")).order_by("-count", column)[:most]
        return [(row[column], row["count"]) for row in rows]


def complete_query(run: Run, q: str, at: int | None = None, **where: Any) -> QueryCompletion:
    """What may stand at character `at` of `q`, its end unless told. `where` as for `search.find`. Raises BadInput."""
    at = len(q) if at is None else max(0, min(at, len(q)))
    start, end = term_at(q, at)
    typed = q[start:at].translate(ASCII_SIGNS)
    place = placed(run, f"{q[:start].rstrip().removesuffix('-')} {q[end:]}", where)
    found = choices(place, typed)
    return QueryCompletion(start, end, tuple(found[:MOST]))


def placed(run: Run, rest: str, where: dict[str, Any]) -> CompletionContext:
    whole = search.find_samples(run, **where)
    counting = whole.total <= MOST_COUNTED
    every = whole if counting else whole.limit_to_newest(MOST_LOOKED_AT)
    try:
        parse_query(rest)
        left = search.find_samples(run, **where, q=rest) if counting and rest.strip() else every
    except InvalidInputError:  # the rest is not whole either: count over everything
        left = every
    return CompletionContext(every, left, counting, alone=not rest.strip())


def term_at(q: str, at: int) -> tuple[int, int]:
    """The span of the term that is typed at `at`, without the sign that negates it."""
    start, quoted = 0, ""
    for place, character in enumerate(q[:at]):
        if quoted:
            quoted = "" if character in quoted else quoted
        elif character in '"＂':
            quoted = character
        elif character in "“”":
            quoted = "“”"
        elif character.isspace() or character in "()（）":
            start = place + 1
    if q[start:at].startswith(("-", "－")):
        start += 1
    end = at
    while not quoted and end < len(q) and not q[end].isspace() and q[end] not in "()（）":
        end += 1
    return start, end


def choices(place: CompletionContext, typed: str) -> list[CompletionChoice]:
    if matched := COMPARED.fullmatch(typed):
        return compared(place, *matched.groups())
    if matched := NAMED.fullmatch(typed):
        return named(place, *matched.groups())
    if typed[:1] in ('"', "“", "”", "＂", "「", "『", "/"):
        return []
    return words(place, typed)


# --- names ------------------------------------------------------------------------------------------------------------


def words(place: CompletionContext, typed: str) -> list[CompletionChoice]:
    """Names that begin with what was typed, then those that hold it; of a name typed in full what may follow."""
    own = logged_keys.find_logged_keys(place.every.scope)
    if typed in NUMBER_FIELDS or typed in own:
        return values(place, typed, own.get(typed), "=", "")
    first, last = names(place)
    offered = [*numbers(place), *first, *(of_key(key) for key in own.values()), *last, *properties(place, typed)]
    wanted = typed.casefold()
    begin = [one for one in offered if one.text.casefold().startswith(wanted)]
    hold = [one for one in offered if one not in begin and wanted and wanted in one.text.casefold()]
    return begin + hold


def numbers(place: CompletionContext) -> list[CompletionChoice]:
    """Those that were recorded here, with their range."""
    ends = {
        f"{end}_{name}": kind(column)
        for name, column in NUMBER_COLUMNS.items()
        for end, kind in (("low", Min), ("high", Max))
    }
    told = place.every.samples.order_by().aggregate(**ends)
    return [
        CompletionChoice(name, "number", ranged(_(ABOUT[name]), told[f"low_{name}"], told[f"high_{name}"]), whole=False)
        for name in NUMBER_FIELDS
        if told[f"low_{name}"] is not None and not (name == "step" and place.every.scope.step_id is not None)
    ]


def names(place: CompletionContext) -> tuple[list[CompletionChoice], list[CompletionChoice]]:
    """Those that are asked often, and the others."""
    shown = ["is", "no", "source", *(name for name in NAME_FIELDS if name != "source")]
    if place.every.scope.step_id is not None:
        shown.remove("split")
    found = [CompletionChoice(f"{name}:", "name", _(ABOUT[name]), whole=False) for name in shown]
    return found[:3], found[3:]


def properties(place: CompletionContext, typed: str) -> list[CompletionChoice]:
    """`trunc` leads to `is:truncated`."""
    wanted = typed.casefold()
    names = [(term, term.partition(":")[2]) for term in PROPERTY]
    found = [term for term, name in names if len(typed) > 1 and name.startswith(wanted) and place.knows(name)]
    return [CompletionChoice(term, "property", _(PROPERTY[term])) for term in found]


def of_key(key: LoggedKey) -> CompletionChoice:
    detail = _("logged text, distinct values: {count}").format(count=key.different)
    if key.numeric:
        detail = ranged(_("logged number"), key.low, key.high)
    return CompletionChoice(logged_keys.format_key(key.name), "key", detail, key.count, whole=False)


def ranged(about: str, low: float | None, high: float | None) -> str:
    """What a number is, and from where to where it goes."""
    said = _("{about}, {low}") if low == high else _("{about}, {low} to {high}")
    return said.format(about=about, low=short(low), high=short(high))


def short(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}".replace("-", "−")


# --- values -----------------------------------------------------------------------------------------------------------


def compared(place: CompletionContext, name: str, sign: str, typed: str) -> list[CompletionChoice]:
    own = logged_keys.find_logged_keys(place.every.scope)
    key = own.get(logged_keys.parse_key_name(name)) if name not in NUMBER_FIELDS else None
    return values(place, name, key, sign, typed) if name in NUMBER_FIELDS or key else []


def values(place: CompletionContext, name: str, key: LoggedKey | None, sign: str, typed: str) -> list[CompletionChoice]:
    """`score<0.5`: for the values that occur most, or that part the samples, how many a comparison leaves."""
    if key is not None:
        return of_logged(place, key, sign, typed)
    often = place.values(NUMBER_COLUMNS[name], 9)
    listed = len(often) <= 8
    found = sorted(value for value, _ in often) if listed else parting(place, NUMBER_COLUMNS[name])
    signs = [sign] if typed or sign != "=" else ["="] if listed else ["<", ">="]
    texts = [f"{name}{one}{written(value, name)}" for one in signs for value in found]
    texts = [text for text in dict.fromkeys(texts) if typed in text and readable(text)]
    counts = place.left(texts)
    return [CompletionChoice(text, "value", "", count) for text, count in zip(texts, counts, strict=True)]


def parting(place: CompletionContext, column: str) -> list[float]:
    """The values below which a tenth, half and nine tenths of the samples lie."""
    there = place.rest.samples.exclude(**{column: None}).order_by(column)
    count = there.count()
    return [there.values_list(column, flat=True)[int(share * (count - 1))] for share in (0.1, 0.5, 0.9) if count]


def written(value: float, name: str) -> str:
    return str(int(value)) if name in INTEGER_FIELDS else f"{value:.6g}"


def readable(term: str) -> bool:
    try:
        parse_query(term)
    except InvalidInputError:
        return False
    return True


def of_logged(place: CompletionContext, key: LoggedKey, sign: str, typed: str) -> list[CompletionChoice]:
    """Values of a logged key, and how many samples have them where nothing else is asked and all were looked at."""
    name = logged_keys.format_key(key.name)
    often = logged_keys.count_logged_values(place.every.scope, key, MOST)
    whole = (
        sign == "="
        and place.alone
        and place.counting
        and logged_keys.is_count_complete(place.every.scope, key, place.every.total)
    )
    shown = [(f"{name}{sign}{value}", count if whole else None) for value, count in often]
    return [CompletionChoice(text, "value", "", count) for text, count in shown if typed in text and readable(text)]


def named(place: CompletionContext, name: str, typed: str) -> list[CompletionChoice]:
    typed = typed.strip('"“”').casefold()
    ways: dict[str, Callable[[], list[CompletionChoice]]] = {
        "is": lambda: of_properties(place, "is", tuple(word for word in PROPERTY_NAMES if place.knows(word))),
        "no": lambda: of_properties(place, "no", MISSING_NAMES),
        "split": lambda: of_terms(place, "split", ("train", "eval")),
        "source": lambda: of_column(place, "source", "data_source"),
        "group": lambda: of_column(place, "group", "group"),
        "reason": lambda: reasons(place),
    }
    if name in NUMBER_FIELDS:
        return [replace(one, text=one.text.replace("=", ":", 1)) for one in values(place, name, None, "=", typed)]
    found = ways[name]() if name in ways else []
    return [one for one in found if typed in one.text.partition(":")[2].casefold()]


def of_properties(place: CompletionContext, name: str, known: tuple[str, ...]) -> list[CompletionChoice]:
    """Those that leave something first."""
    terms = [f"{name}:{word}" for word in known]
    counts = place.left(terms)
    found = [
        CompletionChoice(term, "property", said_of(term), count) for term, count in zip(terms, counts, strict=True)
    ]
    return sorted(found, key=lambda one: one.count == 0)


def said_of(term: str) -> str:
    return _(PROPERTY[term]) if term in PROPERTY else ""


def of_terms(place: CompletionContext, name: str, words: Iterable[str]) -> list[CompletionChoice]:
    terms = [f"{name}:{word}" for word in words]
    return [CompletionChoice(term, "value", "", count) for term, count in zip(terms, place.left(terms), strict=True)]


def of_column(place: CompletionContext, name: str, column: str) -> list[CompletionChoice]:
    shown = [
        (logged_keys.quote_value(value), count if place.counting else None)
        for value, count in place.values(column, 200)
    ]
    return [CompletionChoice(f"{name}:{value}", "value", "", count) for value, count in shown]


def reasons(place: CompletionContext) -> list[CompletionChoice]:
    """The project's, with the flags that have them."""
    run = place.every.scope.run
    rows = Flag.objects.filter(run=run, withdrawn_at=None).values("reason").annotate(count=Count("pk"))
    counts = {row["reason"]: row["count"] for row in rows.order_by()}
    about = _("{reason}: flags in this run")
    return [
        CompletionChoice(
            f"reason:{one['key']}", "value", about.format(reason=_(one["name"])), counts.get(one["key"], 0)
        )
        for one in run.project.reasons
    ]
