"""The list of runs: its filter, the keys of configs, and the status of many runs in a few queries."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import F, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from rollouts.models import MAX_TIMED_STEPS, SILENT_AFTER, SILENT_AFTER_STEPS, Run, Step, compute_median_gap

MAX_CONFIG_DEPTH: Final = 12
TERM_PATTERN: Final = re.compile(
    r"""(?P<negated>-?)(?:(?P<name>[\w./-]+)(?P<sign>[:=：＝]))?(?:"(?P<quoted>[^"]*)"?|(?P<bare>\S+))"""
)
RUN_FIELDS: Final = ("tag", "owner", "status", "project", "framework")


@dataclass(frozen=True, slots=True)
class RunFilterTerm:
    """A term of the filter. `name` is one of `RUN_FIELDS`, a key of the config, or empty for a part of the run's
    name."""

    name: str
    value: str
    negated: bool

    @property
    def needs_config(self) -> bool:
        return bool(self.name) and self.name not in RUN_FIELDS


def parse_run_filter(text: str) -> list[RunFilterTerm]:
    """Parses a filter such as `part-of-name tag:good owner:mina status:failed actor.lr=1e-6 -tag:"old one"`."""
    return [parse_term(match) for match in TERM_PATTERN.finditer(text)]


def parse_term(match: re.Match[str]) -> RunFilterTerm:
    name, sign, negated = match["name"] or "", match["sign"] or "", bool(match["negated"])
    value = match["quoted"] if match["quoted"] is not None else match["bare"]
    if name in RUN_FIELDS or sign in ("=", "＝"):
        return RunFilterTerm(name, value, negated)
    return RunFilterTerm("", f"{name}:{value}" if sign else value, negated)  # a colon may be a part of a run's name


def filter_runs(runs: Iterable[Run], terms: Sequence[RunFilterTerm], statuses: Mapping[int, str]) -> list[Run]:
    """Returns the runs that match all terms. If a term needs the config, the caller has loaded it."""
    needs_config = any(term.needs_config for term in terms)
    result = []
    for run in runs:
        config = flatten_config(run.config) if needs_config else {}
        if all(matches_term(term, run, config, statuses[run.pk]) != term.negated for term in terms):
            result.append(run)
    return result


def matches_term(term: RunFilterTerm, run: Run, config: Mapping[str, Any], status: str) -> bool:
    value = term.value.lower()
    match term.name:
        case "":
            return value in run.name.lower()
        case "tag":
            return any(value == str(tag).lower() for tag in run.tags)
        case "owner":
            return value == (run.owner.get_username().lower() if run.owner else "")
        case "status":
            return value == status.lower()
        case "project":
            return value == run.project.slug.lower()
        case "framework":
            return value == run.framework.lower()
    return term.name in config and equals_config_value(config[term.name], term.value)


def equals_config_value(value: Any, text: str) -> bool:
    """Compares numbers by value: `1e-6` and `0.000001` are equal."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value) == float(text)
        except (ValueError, OverflowError):
            return False
    return format_config_value(value).lower() == text.lower()


def format_config_value(value: Any) -> str:
    """Returns the value as a user would type it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def flatten_config(config: Any, depth: int = MAX_CONFIG_DEPTH) -> dict[str, Any]:
    """Returns {`actor.optim.lr`: value} of nested dictionaries. Lists and empty dictionaries are values."""
    flat: dict[str, Any] = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, dict) and value and depth:
            flat |= {f"{key}.{name}": inner for name, inner in flatten_config(value, depth - 1).items()}
        else:
            flat[str(key)] = value
    return flat


def compare_config_keys(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """Returns the keys of the configs whose values differ, and those with the same value in all runs."""
    configs = [config for run in runs if (config := flatten_config(run.config))]
    values: dict[str, set[str]] = defaultdict(set)
    for config in configs:
        for key, value in config.items():
            values[key].add(format_config_value(value))
    counts = Counter(key for config in configs for key in config)
    different = {key for key, own in values.items() if len(own) > 1 or counts[key] < len(configs)}
    return sorted(different), sorted(set(values) - different)


def load_run_statuses(runs: Sequence[Run]) -> dict[int, str]:
    """Returns `Run.status` of many runs by id. Makes at most one query, for runs without a recent update."""
    now = timezone.now()
    quiet = [run for run in runs if not run.outcome and now - run.seen_at > SILENT_AFTER]
    medians = load_median_steps([run.pk for run in quiet])
    statuses = {run.pk: run.outcome or "running" for run in runs}
    for run in quiet:
        if now - run.seen_at > SILENT_AFTER_STEPS * medians.get(run.pk, timedelta(0)):
            statuses[run.pk] = "silent"
    return statuses


def load_median_steps(run_ids: Sequence[int]) -> dict[int, timedelta]:
    """Returns `Run.median_step` of many runs by id."""
    if not run_ids:
        return {}
    newest = Window(RowNumber(), partition_by=[F("run")], order_by=F("step").desc())
    steps = Step.objects.filter(run__in=run_ids, split="train").annotate(newest=newest)
    arrivals: dict[int, list[datetime]] = defaultdict(list)
    for run, arrived_at in steps.filter(newest__lte=MAX_TIMED_STEPS).values_list("run", "created_at"):
        arrivals[run].append(arrived_at)
    return {run: compute_median_gap(times) for run, times in arrivals.items()}
