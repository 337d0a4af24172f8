"""Finds the runs that match a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import DEFAULT_DB_ALIAS
from django.db.models import QuerySet
from django.db.models.base import ModelState

from rollouts.models import Project, Run
from rollouts.query import InvalidQueryError, PropertyTerm, Query, parse_query, split_terms
from rollouts.runs.conditions import build_run_test
from rollouts.runs.table import RunTable
from rollouts.runs.vocabulary import RUN_VOCABULARY

MAX_SEARCHED_RUNS: Final = 10_000  # the most recently updated ones
MAX_EXPLAINED_TERMS: Final = 12
LIGHT_FIELDS: Final = (
    "uid", "name", "project", "owner", "framework", "tags", "outcome", "version", "created_at", "seen_at",
    "finished_at", "archived_at", "deleted_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TermEffect:
    """A term of a query without matches: how many runs match it alone, and how many the query without it."""

    text: str
    alone: int
    without: int
    rest: str


@dataclass(frozen=True)
class RunResult:
    """`matches` are the matching runs of the table, the most recently updated first. If `has_more`, there are more runs
    than were searched."""

    query: Query
    table: RunTable
    matches: list[Run]
    has_more: bool = False

    @cached_property
    def explanation(self) -> list[TermEffect]:
        """Returns the effect of each term, those that match no run first. Empty if there are matches."""
        terms = split_terms(self.query.text, RUN_VOCABULARY)
        if self.matches or terms.is_choice or not 1 < len(terms.terms) <= MAX_EXPLAINED_TERMS:
            return []
        tests = [build_run_test(term.node, self.table) for term in terms.terms]
        passed = [{run.pk for run in self.table.runs if test(run)} for test in tests]
        effects = []
        for at, term in enumerate(terms.terms):
            others = [ids for other, ids in enumerate(passed) if other != at]
            rest = " ".join(other.text for number, other in enumerate(terms.terms) if number != at)
            effects.append(TermEffect(term.text, len(passed[at]), len(set.intersection(*others)), rest))
        return sorted(effects, key=lambda effect: (effect.alone > 0, -effect.without))


def find_runs(
    runs: QuerySet[Run],
    q: str = "",
    *,
    reader: int | None = None,
    archived: bool | None = False,
    projects: Mapping[int, Project] | None = None,
) -> RunResult:
    """Returns the runs that match `q`. `archived` None means all runs; a query about `is:archived` also means all.
    `projects`, by id, are those of the runs if they are loaded already. Raises InvalidQueryError."""
    query = parse_query(q, RUN_VOCABULARY)
    if archived is not None and PropertyTerm("archived") not in query.leaves:
        runs = runs.filter(archived_at__isnull=not archived)
    rows = load_light_runs(runs.order_by("-seen_at", "-pk")[: MAX_SEARCHED_RUNS + 1], projects)
    table = RunTable(rows[:MAX_SEARCHED_RUNS], reader)
    return RunResult(query, table, select_runs(table, query), len(rows) > MAX_SEARCHED_RUNS)


def select_runs(table: RunTable, query: Query) -> list[Run]:
    if query.root is None:
        return list(table.runs)
    test = build_run_test(query.root, table)
    return [run for run in table.runs if test(run)]


def count_matches(table: RunTable, runs: Iterable[Run], q: str) -> int | None:
    """Returns how many of the runs match a query; None if it cannot be parsed."""
    try:
        test: Callable[[Run], bool] | None = None
        if root := parse_query(q, RUN_VOCABULARY).root:
            test = build_run_test(root, table)
    except InvalidQueryError:
        return None
    return sum(1 for run in runs if test is None or test(run))


def load_light_runs(runs: QuerySet[Run], projects: Mapping[int, Project] | None) -> list[Run]:
    """Runs with `LIGHT_FIELDS`, as `only()` loads them; other fields are loaded when they are read. Each project and
    owner is loaded once; `projects` are known already.

    Instances are filled directly: for thousands of runs, Django's constructor takes longer than the query.
    """
    names = [field.attname for field in Run._meta.concrete_fields if field.name in {"id", *LIGHT_FIELDS}]
    rows = list(runs.values_list(*names))
    project_at, owner_at = names.index("project_id"), names.index("owner_id")
    known = dict(projects or {})
    if missing := {row[project_at] for row in rows} - known.keys():
        known |= Project.objects.in_bulk(missing)
    owners: dict[int | None, User] = User.objects.in_bulk({row[owner_at] for row in rows if row[owner_at]})
    return [
        build_run(zip(names, row, strict=True), project=known[row[project_at]], owner=owners.get(row[owner_at]))
        for row in rows
    ]


def build_run(values: Iterable[tuple[str, Any]], **relations: Any) -> Run:
    run = Run.__new__(Run)
    run.__dict__.update(values)
    run._state = ModelState()
    run._state.adding, run._state.db = False, DEFAULT_DB_ALIAS
    run._state.fields_cache = relations
    return run
