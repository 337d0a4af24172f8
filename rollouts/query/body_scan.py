"""What the query language asks of texts and logged keys: a scan of the Parquet bodies, newest step first.

Exact in any script and in the middle of words, because no index of words stands between. polars is imported on first
use only: worker processes fork, and its threads do not survive that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from time import monotonic
from typing import TYPE_CHECKING, Final

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils.translation import gettext as _

from rollouts.errors import StorageUnavailableError
from rollouts.lib import MAX_FOUND_IDS, Cache
from rollouts.models import Dump, DuplicateSource
from rollouts.query.ast import (
    And,
    InvalidQueryError,
    LoggedKeyTerm,
    Not,
    Or,
    QueryNode,
    RegexTerm,
    TextTerm,
    collect_leaves,
    compute_tolerance,
)
from rollouts.samples import scan_dump_rows
from rollouts.storage import get_body_file_path

if TYPE_CHECKING:
    import polars as pl

    from rollouts.query.sql import QueryScope


@dataclass(slots=True)
class TimeBudget:
    """How long a search may take, newest step first: `seconds`, but past the step `beyond` in any case, so that who
    asks again with the last `horizon` comes further. Steps up to `horizon` were not searched; None once all were."""

    seconds: float
    before_step: int | None = None
    cursor: int | None = None
    started: float = field(default_factory=monotonic)

    def is_over(self, left: Sequence[BodyFilePart]) -> bool:
        """Whether to stop before `left`; a file of which the steps are not known has to be read."""
        newest = None if any(part.newest is None for part in left) else max(part.newest or 0 for part in left)
        if newest is None:
            return False
        if self.cursor is not None and newest <= self.cursor:  # another scan of the same search ended here
            return True
        if monotonic() - self.started < self.seconds:
            return False
        if self.before_step is not None and newest >= self.before_step:
            return False
        self.cursor = newest if self.cursor is None else max(newest, self.cursor)
        return True


MOST_PIECES: Final = 64
FILES_AT_ONCE: Final = 8
TURNS: Final = ("num_turns", "__num_turns__", "turns")
# Columns without a prefix that can be asked like logged keys.
NUMBERS: Final = ("index", "turn", "policy_version")
TEXTS: Final = ("group", "trajectory", "ground_truth", "data_source", "finish_reason")


@dataclass(frozen=True, slots=True)
class BodyFilePart:
    """A body file and the pieces (first row, rows) of it that are asked; no pieces means all of it. `newest` is the
    last step that it tells of; None where its dumps name no step."""

    path: str
    pieces: tuple[tuple[int, int], ...]
    newest: int | None = field(default=None, compare=False)


def dumps_of(scope: QueryScope) -> QuerySet[Dump]:
    """Those with a body."""
    same = {name: OuterRef(name) for name in ("attempt", "split", "step_kind", "step")}
    inside = Q(step=None) | Q(Exists(scope.steps.filter(**same)))
    live = Dump.objects.exclude(state=Dump.State.SUPERSEDED).filter(run=scope.run, segment__isnull=False)
    return live.filter(inside)


def has_several_bodies(scope: QueryScope) -> bool:
    """Whether any sample has more than one body."""
    return dumps_of(scope).filter(Exists(DuplicateSource.objects.filter(dump=OuterRef("pk")))).exists()


def list_body_parts(scope: QueryScope) -> list[BodyFilePart]:
    """The body files of the scope's dumps, newest step first."""
    dumps = dumps_of(scope).order_by(F("step").desc(nulls_first=True), "-pk")
    rows = dumps.values_list("segment__path", "segment__rows", "segment_offset", "rows", "step")
    pieces: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    newest: dict[tuple[str, int], int | None] = {}
    for path, size, offset, count, step in rows:
        pieces[path, size].append((offset, count))
        newest.setdefault((path, size), step)
    return [BodyFilePart(path, merge_pieces(found, size), newest[path, size]) for (path, size), found in pieces.items()]


def merge_pieces(pieces: Sequence[tuple[int, int]], size: int) -> tuple[tuple[int, int], ...]:
    """Neighbouring pieces as one; none at all where they are the whole file, or too many to be worth it."""
    whole: list[tuple[int, int]] = []
    for offset, count in sorted(pieces):
        if whole and whole[-1][0] + whole[-1][1] >= offset:
            start = whole[-1][0]
            whole[-1] = (start, max(whole[-1][0] + whole[-1][1], offset + count) - start)
        else:
            whole.append((offset, count))
    return () if len(whole) > MOST_PIECES or whole == [(0, size)] else tuple(whole)


def scan_bodies(scope: QueryScope, node: QueryNode, time_budget: TimeBudget | None = None) -> list[str]:
    """Ids of the samples of which any body answers `node`; some may lie outside the scope.

    Raises BadQuery for a key that no body has, StorageUnavailable.
    """
    for last in (False, False, True):
        try:
            return translated(scope, scanned(list_body_parts(scope), node, time_budget))
        except (FileNotFoundError, StorageUnavailableError):  # folding has moved rows to another file since
            if last:
                said = _("Cannot read the sample texts of this run. Try again, or re-index the run.")
                raise StorageUnavailableError(said) from None
    raise AssertionError("unreachable")


def translated(scope: QueryScope, ids: list[str]) -> list[str]:
    """Rows of batches that joined the samples of other dumps have ids of their own in their bodies."""
    if not ids:
        return ids
    found = set(ids)
    for dump in dumps_of(scope).filter(source__startswith=Dump.ARTIFACT_PREFIX).select_related("segment"):
        own = [name for table in scan_dump_rows(dump, ["id"]) for name in table["id"].to_pylist()]
        sights = DuplicateSource.objects.filter(dump=dump).values_list("ordinal", "sample")
        found.update(sample for ordinal, sample in sights if ordinal < len(own) and own[ordinal] in found)
    return list(found) if len(found) > len(ids) else ids


def scanned(
    files: Sequence[BodyFilePart],
    node: QueryNode,
    time_budget: TimeBudget | None = None,
) -> list[str]:
    ids: list[str] = []
    keys: set[str] = set()
    for start in range(0, len(files), FILES_AT_ONCE):
        portion = files[start : start + FILES_AT_ONCE]
        for found, here in answers(portion, node):
            ids += found
            keys |= here
        if time_budget and (left := files[start + len(portion) :]) and time_budget.is_over(left):
            return ids
    if files:
        refuse_unknown(node, keys)
    return ids


Answer = tuple[tuple[str, ...], frozenset[str]]


# Files never change; bounded by the ids that their answers hold.
answer_cache: Cache[tuple[BodyFilePart, QueryNode, tuple[str, int, int]], Answer] = Cache(
    MAX_FOUND_IDS, lambda answer: len(answer[0]) + 10
)


def answers(files: Sequence[BodyFilePart], node: QueryNode) -> list[Answer]:
    """Of each file the ids that answer `node`, and the keys its rows were logged with. New files are read together."""
    import polars as pl

    stamps = [(part, node, stamp(part)) for part in files]
    known = {key: answer_cache.get(key) for key in stamps}
    new = [key for key in stamps if known[key] is None]
    try:
        asked = [lazy(part, node) for part, _, _ in new]
        frames = pl.collect_all([frame for frame, _ in asked], engine="streaming")
    except pl.exceptions.PolarsError as error:
        raise StorageUnavailableError(f"A body file cannot be read: {error}.") from error
    for key, frame, (_rows, columns) in zip(new, frames, asked, strict=True):
        known[key] = answer = tuple(frame["id"]), keys_of(columns)
        answer_cache.put(key, answer)
    return [found for key in stamps if (found := known[key])]


def stamp(part: BodyFilePart) -> tuple[str, int, int]:
    """Changes with the file. Raises FileNotFoundError."""
    path = get_body_file_path(part.path)
    status = path.stat()
    return str(path), status.st_mtime_ns, status.st_size


def lazy(part: BodyFilePart, node: QueryNode) -> tuple[pl.LazyFrame, frozenset[str]]:
    """The question to one file, and the file's columns."""
    import polars as pl

    path = get_body_file_path(part.path)
    columns = frozenset(pl.read_parquet_schema(path))
    rows = pl.scan_parquet(path)
    pieces = [rows.slice(first, count) for first, count in part.pieces] or [rows]
    test = expression(node, columns)
    return pl.concat([piece.filter(test).select("id") for piece in pieces]), columns


def keys_of(columns: frozenset[str]) -> frozenset[str]:
    """What can be asked of a file with these columns."""
    own = (name.partition(".") for name in columns)
    return frozenset(key for kind, _, key in own if key and kind in ("num", "str", "json")).union(NUMBERS, TEXTS)


def expression(node: QueryNode, columns: frozenset[str]) -> pl.Expr:
    """`node` over one file's columns: `prompt`, `response`, `num.<key>` (float64), `str.<key>`; never null."""
    import polars as pl

    match node:
        case And(parts):
            return pl.all_horizontal([expression(part, columns) for part in parts])
        case Or(parts):
            return pl.any_horizontal([expression(part, columns) for part in parts])
        case Not(part):
            return ~expression(part, columns)
        case TextTerm(text, any_case):
            if any_case and text.upper() != text:
                return in_text("(?i)" + pl.escape_regex(text))
            return in_text(text, literal=True)
        case RegexTerm(pattern):
            return in_text(pattern)
        case LoggedKeyTerm():
            return logged(node, columns)
    raise AssertionError(f"{node} is answered by columns")


def in_text(pattern: str, literal: bool = False) -> pl.Expr:
    import polars as pl

    found = [pl.col(name).str.contains(pattern, literal=literal).fill_null(False) for name in ("prompt", "response")]
    return found[0] | found[1]


def logged(node: LoggedKeyTerm, columns: frozenset[str]) -> pl.Expr:
    import polars as pl

    tests = [test for name in names_of(node.key) for test in tests_of(node, name) if test[0] in columns]
    return pl.any_horizontal([pl.lit(False), *(test.fill_null(False) for _, test in tests)])


def names_of(key: str) -> tuple[str, ...]:
    return TURNS if key == "turns" else (key,)


def tests_of(node: LoggedKeyTerm, key: str) -> Iterator[tuple[str, pl.Expr]]:
    """(column, test) of the columns that may hold a logged key: as a number, as text, as JSON."""
    import polars as pl

    number = key if key in NUMBERS else f"num.{key}"
    text = key if key in TEXTS else f"str.{key}"
    if node.sign == "known":
        yield from ((name, pl.col(name).is_not_null()) for name in (number, text, f"json.{key}"))
    elif node.sign == ":":
        part = "(?i)" + pl.escape_regex(node.text)
        yield from ((name, pl.col(name).str.contains(part)) for name in (text, f"json.{key}"))
    elif node.sign == "=":
        yield text, pl.col(text) == node.text
    value = {"true": 1.0, "false": 0.0}.get(node.text.lower(), node.number)
    if value is not None and node.sign != "known":
        yield number, compared(pl.col(number), node.sign, value)


def compared(number: pl.Expr, sign: str, value: float) -> pl.Expr:
    near = compute_tolerance(value)
    match sign:
        case "<":
            return number < value - near
        case "<=":
            return number <= value + near
        case ">":
            return number > value + near
        case ">=":
            return number >= value - near
        case _:
            return (number - value).abs() <= near


def refuse_unknown(node: QueryNode, keys: set[str]) -> None:
    """Raises BadQuery for a logged key that none of the scanned rows has: a typo must not look like "no match"."""
    for leaf in collect_leaves(node):
        if isinstance(leaf, LoggedKeyTerm) and not keys.intersection(names_of(leaf.key)):
            close = get_close_matches(leaf.key, keys, n=1)
            own = sorted(keys.difference(NUMBERS, TEXTS))
            parts = [
                _("No sample here has the key `{key}`."),
                _("Did you mean `{meant}`?") if close else "",
                _("Logged keys: {keys}.") if own else "",
                _("To search for it as text, put it in quotes."),
            ]
            told = {"key": leaf.key, "meant": "".join(close), "keys": ", ".join(own[:20])}
            raise InvalidQueryError(" ".join(part.format(**told) for part in parts if part), leaf.span)
