"""What a list of runs filters and sorts by, for many runs in a few queries."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import F, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from rollouts.models import MAX_TIMED_STEPS, SILENT_AFTER, SILENT_AFTER_STEPS, Run, Step, compute_median_gap

DEEPEST: Final = 12
WORD: Final = re.compile(
    r"""(?P<negated>-?)(?:(?P<name>[\w./-]+)(?P<sign>[:=：＝]))?(?:"(?P<quoted>[^"]*)"?|(?P<bare>\S+))"""
)
FACTS: Final = ("tag", "owner", "status", "project", "framework")


@dataclass(frozen=True, slots=True)
class RunFilterTerm:
    """A word of the filter. `name` is one of `FACTS`, a key of the config, or empty for a part of the run's name."""

    name: str
    value: str
    negated: bool

    @property
    def of_config(self) -> bool:
        return bool(self.name) and self.name not in FACTS


def parse_run_filter(words: str) -> list[RunFilterTerm]:
    """`part-of-name tag:good owner:mina status:failed actor.lr=1e-6 -tag:"old one"`, all of them at once."""
    return [term_of(found) for found in WORD.finditer(words)]


def term_of(found: re.Match[str]) -> RunFilterTerm:
    name, sign = found["name"] or "", found["sign"] or ""
    value = found["quoted"] if found["quoted"] is not None else found["bare"]
    negated = bool(found["negated"])
    if sign in (":", "：") and name not in FACTS:  # a colon belongs to names such as `a:b`
        return RunFilterTerm("", f"{name}:{value}", negated)
    if name in FACTS or sign in ("=", "＝"):
        return RunFilterTerm(name, value, negated)
    return RunFilterTerm("", value, negated)


def filter_runs(runs: Iterable[Run], wanted: Sequence[RunFilterTerm], statuses: Mapping[int, str]) -> list[Run]:
    """The runs for which every term holds. Those with terms of the config need it loaded."""
    deep = any(term.of_config for term in wanted)
    found = []
    for run in runs:
        known = flatten_config(run.config) if deep else {}
        if all(holds(term, run, known, statuses[run.pk]) != term.negated for term in wanted):
            found.append(run)
    return found


def holds(term: RunFilterTerm, run: Run, known: Mapping[str, Any], status: str) -> bool:
    value = term.value.lower()
    if not term.name:
        return value in run.name.lower()
    if term.name == "tag":
        return any(value == str(tag).lower() for tag in run.tags)
    if term.name in FACTS:
        told = {
            "owner": run.owner.get_username() if run.owner else "",
            "status": status,
            "project": run.project.slug,
            "framework": run.framework,
        }
        return told[term.name].lower() == value
    return term.name in known and same(known[term.name], term.value)


def same(known: Any, wanted: str) -> bool:
    """1e-06, `1e-6` and `0.000001` are one number."""
    if isinstance(known, int | float) and not isinstance(known, bool):
        try:
            return float(known) == float(wanted)
        except (ValueError, OverflowError):
            return False
    return format_config_value(known).lower() == wanted.lower()


def format_config_value(value: Any) -> str:
    """A value of a config as a person would type it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def flatten_config(config: Any, depth: int = DEEPEST) -> dict[str, Any]:
    """{`actor.optim.lr`: value} of a config of dictionaries in dictionaries; lists and empty ones are values."""
    out: dict[str, Any] = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, dict) and value and depth:
            out |= {f"{key}.{inner}": found for inner, found in flatten_config(value, depth - 1).items()}
        else:
            out[str(key)] = value
    return out


def compare_config_keys(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """Keys of the runs' configs: those in which the runs differ, and those in which all are alike."""
    configs = [known for run in runs if (known := flatten_config(run.config))]
    values: dict[str, set[str]] = defaultdict(set)
    told: dict[str, int] = defaultdict(int)
    for known in configs:
        for key, value in known.items():
            values[key].add(format_config_value(value))
            told[key] += 1
    differ = {key for key, found in values.items() if len(found) > 1 or told[key] < len(configs)}
    return sorted(differ), sorted(set(values) - differ)


def load_run_statuses(runs: Sequence[Run]) -> dict[int, str]:
    """`Run.status` of many runs by id, in one query at most: only a long silence needs the pace of its run."""
    now = timezone.now()
    quiet = [run for run in runs if not run.outcome and now - run.seen_at > SILENT_AFTER]
    paces = medians([run.pk for run in quiet])
    found = {run.pk: run.outcome or "running" for run in runs}
    found |= {
        run.pk: "silent" for run in quiet if now - run.seen_at > SILENT_AFTER_STEPS * paces.get(run.pk, timedelta(0))
    }
    return found


def medians(run_ids: Sequence[int]) -> dict[int, timedelta]:
    """Median time between the last training steps of each run, as `Run.median_step` has it."""
    if not run_ids:
        return {}
    newest = Window(RowNumber(), partition_by=[F("run")], order_by=F("step").desc())
    steps = Step.objects.filter(run__in=run_ids, split="train").annotate(newest=newest)
    arrived: dict[int, list[datetime]] = defaultdict(list)
    for run, moment in steps.filter(newest__lte=MAX_TIMED_STEPS).values_list("run", "created_at"):
        arrived[run].append(moment)
    return {run: compute_median_gap(moments) for run, moments in arrived.items()}
