"""Turns a query about runs into a test of one run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from rollouts.lib import MAX_INT64
from rollouts.models import Run
from rollouts.query import (
    And,
    LoggedKeyTerm,
    MissingTerm,
    NameTerm,
    Not,
    Or,
    PropertyTerm,
    QueryNode,
    RangeTerm,
    RecordedTerm,
    RegexTerm,
    TextTerm,
    find_matching_texts,
)
from rollouts.runs.configs import ConfigValue, format_config_value
from rollouts.runs.table import RunTable

RunTest = Callable[[Run], bool]


def build_run_test(node: QueryNode, table: RunTable) -> RunTest:
    """Raises InvalidQueryError for a key that no run has."""
    match node:
        case And(parts):
            tests = [build_run_test(part, table) for part in parts]
            return lambda run: all(test(run) for test in tests)
        case Or(parts):
            tests = [build_run_test(part, table) for part in parts]
            return lambda run: any(test(run) for test in tests)
        case Not(part):
            inner = build_run_test(part, table)
            return lambda run: not inner(run)
        case TextTerm(text, any_case):
            return build_text_test(text, any_case=any_case)
        case RegexTerm(pattern):
            texts = [(run.pk, text) for run in table.runs for text in (run.name, *map(str, run.tags))]
            found = find_matching_texts(pattern, [text for _, text in texts])
            ids = {pk for (pk, _), is_match in zip(texts, found, strict=True) if is_match}
            return lambda run: run.pk in ids
        case NameTerm(name, text):
            return build_name_test(name, text, table)
        case PropertyTerm(name):
            return PROPERTY_TESTS[name](table)
        case MissingTerm(name):
            return MISSING_TESTS[name](table)
        case LoggedKeyTerm():
            return build_key_test(node, table)
        case RangeTerm(key):
            get, is_inside = NUMBERS[key](table), build_range_test(node)
            return lambda run: is_inside(get(run))
        case RecordedTerm(key):
            get = NUMBERS[key](table)
            return lambda run: get(run) is not None
    raise AssertionError(f"{node} is not a term about runs")


def build_text_test(text: str, *, any_case: bool) -> RunTest:
    """A word or phrase is in the name or in a tag."""
    if not any_case:
        return lambda run: text in run.name or any(text in str(tag) for tag in run.tags)
    return lambda run: text in run.name.lower() or any(text in str(tag).lower() for tag in run.tags)


def build_name_test(name: str, text: str, table: RunTable) -> RunTest:
    value = text.lower()

    def get_field(run: Run) -> str:
        return str(table.configs[run.pk].find_field(name) or "").lower()

    tests: dict[str, RunTest] = {
        "name": lambda run: value in run.name.lower(),
        "tag": lambda run: any(value == str(tag).lower() for tag in run.tags),
        "status": lambda run: value == table.statuses[run.pk],
        "project": lambda run: value == run.project.slug.lower(),
        "owner": lambda run: value == (run.owner.get_username().lower() if run.owner else ""),
        "trainer": lambda run: value == run.framework.lower(),
        "framework": lambda run: value == run.framework.lower(),
        "algorithm": lambda run: value == get_field(run),
        "model": lambda run: value in get_field(run),
        "host": lambda run: any(value in host.lower() for host in table.statistics[run.pk].hosts),
    }
    return tests[name]


NumberGetter = Callable[[Run], float | None]


def get_seed(table: RunTable) -> NumberGetter:
    def get(run: Run) -> float | None:
        seed = table.configs[run.pk].find_field("seed")
        return seed if isinstance(seed, int) and abs(seed) <= MAX_INT64 else None

    return get


NUMBERS: Final[dict[str, Callable[[RunTable], NumberGetter]]] = {
    "score": lambda table: lambda run: table.statistics[run.pk].score,
    "best": lambda table: lambda run: table.statistics[run.pk].best,
    "step": lambda table: lambda run: table.statistics[run.pk].step,
    "steps": lambda table: lambda run: table.statistics[run.pk].steps,
    "samples": lambda table: lambda run: table.statistics[run.pk].samples,
    "flags": lambda table: lambda run: table.statistics[run.pk].flags,
    "truncated": lambda table: lambda run: table.statistics[run.pk].truncated,
    "seed": get_seed,
    "created": lambda table: lambda run: (table.now - run.created_at).total_seconds(),
    "updated": lambda table: lambda run: (table.now - run.seen_at).total_seconds(),
}
PROPERTY_TESTS: Final[dict[str, Callable[[RunTable], RunTest]]] = {
    "archived": lambda table: lambda run: run.archived_at is not None,
    "pinned": lambda table: lambda run: table.statistics[run.pk].pinned,
    "flagged": lambda table: lambda run: table.statistics[run.pk].flags > 0,
    "mine": lambda table: lambda run: run.owner_id is not None and run.owner_id == table.reader,
}
MISSING_TESTS: Final[dict[str, Callable[[RunTable], RunTest]]] = {
    "score": lambda table: lambda run: table.statistics[run.pk].score is None,
    "samples": lambda table: lambda run: not table.statistics[run.pk].samples,
    "config": lambda table: lambda run: not table.configs[run.pk].keys,
    "tag": lambda table: lambda run: not run.tags,
}


def build_range_test(term: RangeTerm) -> Callable[[float | None], bool]:
    low = -math.inf if term.low is None else term.low
    high = math.inf if term.high is None else term.high
    over = float.__gt__ if term.open_low and term.low is not None else float.__ge__
    under = float.__lt__ if term.open_high and term.high is not None else float.__le__
    return lambda number: number is not None and over(float(number), low) and under(float(number), high)


def build_key_test(term: LoggedKeyTerm, table: RunTable) -> RunTest:
    key = table.resolve_key(term)
    if key.is_metric:
        values = table.load_metric(key.name)
        if term.sign == "known":
            return lambda run: values.get(run.pk) is not None
        return lambda run: compare_value(values.get(run.pk), term)
    configs = table.configs
    if term.sign == "known":
        return lambda run: configs[run.pk].has(key.name)
    return lambda run: configs[run.pk].has(key.name) and compare_value(configs[run.pk].get(key.name), term)


def compare_value(value: ConfigValue, term: LoggedKeyTerm) -> bool:
    """Compares numbers by value: `1e-6` and `0.000001` are equal. `:` asks for a part of a text or a range."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return compare_number(value, term)
    text, wanted = format_config_value(value).lower(), term.text.lower()
    match term.sign:
        case "=":
            return text == wanted
        case ":":
            return wanted in text
    return False


def compare_number(value: float, term: LoggedKeyTerm) -> bool:
    try:
        value = float(value)
    except OverflowError:
        return False
    if term.number is None:
        low_text, dots, high_text = term.text.partition("..")
        if not dots or term.sign != ":":
            return False
        try:
            low, high = float(low_text or -math.inf), float(high_text or math.inf)
        except ValueError:
            return False
        return low <= value <= high
    is_equal = math.isclose(value, term.number, rel_tol=1e-9, abs_tol=1e-300)
    match term.sign:
        case "<":
            return value < term.number and not is_equal
        case ">":
            return value > term.number and not is_equal
        case "<=":
            return value < term.number or is_equal
        case ">=":
            return value > term.number or is_equal
    return is_equal
