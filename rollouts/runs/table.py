"""Runs with what a query and the run list need of them. Each part is loaded when it is first asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from functools import cached_property
from typing import Final

from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.lib import CacheSize, NewestCache
from rollouts.metrics import list_recent_metric_names, load_last_values
from rollouts.models import Run
from rollouts.query import InvalidQueryError, LoggedKeyTerm, quote_value
from rollouts.runs.configs import RunConfig, RunId, load_run_configs, map_versions
from rollouts.runs.listing import load_run_statuses
from rollouts.runs.statistics import RunStatistics, load_run_statistics
from rollouts.runs.vocabulary import RUN_VOCABULARY

MAX_NAMED_METRIC_RUNS: Final = 60  # the newest runs, whose metrics are offered and can be asked for
MAX_LISTED_KEYS: Final = 8

LastValueKey = tuple[RunId, str]  # of a metric
last_values_cache: NewestCache[LastValueKey, float | None] = NewestCache(CacheSize.LAST_VALUES)


@dataclass(frozen=True, slots=True)
class RunKey:
    """A key of the configs, or a metric."""

    name: str
    is_metric: bool = False


@dataclass
class RunTable:
    """`runs` are sorted, the most recently updated first. `reader` is the id of the user."""

    runs: Sequence[Run]
    reader: int | None = None
    now: datetime = field(default_factory=timezone.now)
    metrics: dict[str, dict[int, float | None]] = field(default_factory=dict)

    @cached_property
    def configs(self) -> dict[int, RunConfig]:
        return load_run_configs(self.runs)

    @cached_property
    def statistics(self) -> dict[int, RunStatistics]:
        return load_run_statistics(self.runs)

    @cached_property
    def statuses(self) -> dict[int, str]:
        """The statistics are cached by the version of a run. A first attempt does not change the version, so runs that
        had none are queried again."""
        return load_run_statuses(self.runs, {pk for pk, values in self.statistics.items() if values.started})

    @cached_property
    def config_keys(self) -> list[str]:
        shapes = {id(config.shape): config.shape for config in self.configs.values()}
        return sorted({key for shape in shapes.values() for key in shape.keys})

    @cached_property
    def metric_names(self) -> list[str]:
        return list_recent_metric_names(self.runs[:MAX_NAMED_METRIC_RUNS])

    def load_metric(self, name: str) -> dict[int, float | None]:
        """Returns the last value of a metric by run id."""
        if name not in self.metrics:
            self.metrics[name] = load_cached_last_values(self.runs, [name])[name]
        return self.metrics[name]

    def resolve_key(self, term: LoggedKeyTerm) -> RunKey:
        """Returns the key that a term means: as it is written, or the end of one config key. Raises
        InvalidQueryError."""
        name = term.key
        if name in self.config_keys:
            return RunKey(name)
        prefix, _dot, rest = name.partition(".")
        if prefix == "metric" and rest in self.metric_names:
            return RunKey(rest, is_metric=True)
        short = rest if prefix == "config" else name
        ends = [short] if short in self.config_keys else [key for key in self.config_keys if key.endswith(f".{short}")]
        if len(ends) == 1:
            return RunKey(ends[0])
        if len(ends) > 1:
            message = _("`{key}` could be {keys}. Write the whole key.")
            keys = ", ".join(f"`{key}`" for key in ends[:MAX_LISTED_KEYS])
            raise InvalidQueryError(message.format(key=name, keys=keys), term.span)
        if name in self.metric_names:
            return RunKey(name, is_metric=True)
        raise InvalidQueryError(self.describe_unknown_key(name), term.span)

    def describe_unknown_key(self, name: str) -> str:
        short = {key.rpartition(".")[2]: key for key in reversed(self.config_keys)}
        known = [*RUN_VOCABULARY.field_names, *short, *self.config_keys, *self.metric_names]
        similar = next(iter(get_close_matches(name.removeprefix("config."), known, n=1)), "")
        parts = [
            _("No run here has `{key}`, neither in its config nor as a metric."),
            _("Did you mean `{similar}`?") if similar else "",
            _("To search for it as text, put it in quotes."),
        ]
        return " ".join(filter(None, parts)).format(key=name, similar=similar)


def format_run_key(table: RunTable, key: RunKey) -> str:
    """Returns the shortest form of a key that means it."""
    if key.is_metric:
        clash = key.name in table.config_keys or key.name in RUN_VOCABULARY.field_names
        return f"metric.{quote_value(key.name)}" if clash else key.name
    short = key.name.rpartition(".")[2]
    ends = [other for other in table.config_keys if other == short or other.endswith(f".{short}")]
    if ends == [key.name] and short not in RUN_VOCABULARY.field_names:
        return short
    return f"config.{quote_value(key.name)}" if key.name in RUN_VOCABULARY.field_names else key.name


def load_cached_last_values(runs: Sequence[Run], names: Collection[str]) -> dict[str, dict[int, float | None]]:
    """Returns the last values by metric and run id. Only runs that changed are queried."""

    ids = {(run.pk, run.created_at): run for run in runs}

    def load(missing: Sequence[LastValueKey]) -> Mapping[LastValueKey, float | None]:
        changed = {run: ids[run] for run, _name in missing}
        values = load_last_values(list(changed.values()), list(names))
        return {(run, name): values[changed[run].uid].get(name) for run in changed for name in names}

    versions = {(run, name): version for run, version in map_versions(runs).items() for name in names}
    values = last_values_cache.load_many(versions, load)
    return {name: {pk: values[(pk, created_at), name] for pk, created_at in ids} for name in names}
