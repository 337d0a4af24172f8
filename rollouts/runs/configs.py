"""The configs of many runs: flat keys, fields that all trainers have under different names, and what differs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from hashlib import blake2s
from typing import Any, Final

import orjson
from django.db.models import TextField
from django.db.models.functions import Cast

from rollouts.lib import CacheSize, NewestCache, cached, flatten_config
from rollouts.models import Run

MAX_CONFIG_DEPTH: Final = 12
ConfigValue = str | int | float | bool | None
RunId = tuple[int, datetime]  # a run that is created later may get the same id

# Ends of the keys that hold a field, the most specific first.
FIELD_KEYS: Final = {
    "model": (
        "model_name_or_path", "model.path", "model.name", "hf_checkpoint", "model_path", "model_name", "base_model",
        "pretrain", "pretrained", "model",
    ),
    "algorithm": (
        "algorithm.adv_estimator", "adv_estimator", "advantage_estimator", "algorithm.name", "rl_algorithm",
        "loss_type", "algorithm", "algo",
    ),
    "seed": ("seed", "random_seed", "data_seed", "data_loader_seed"),
}  # fmt: skip
# Keys whose values are of one run only: two runs that differ only in them have the same configuration.
OWN_KEY: Final = re.compile(
    r"(?:^|[._/-])(?:seeds?|(?:experiment|exp|run|job)_?(?:name|id)|(?:output|log|logging|save|checkpoint|ckpt|default_local|"
    r"default_hdfs|rollout_data|validation_data|dump|results?)_(?:dir|path)|save|hostname|master_(?:port|addr)|timestamp)$",
    re.IGNORECASE,
)
# Ends of keys that people compare runs by, the most usual first.
USUAL_SETTINGS: Final = (
    "lr", "learning_rate", "kl_coef", "kl_loss_coef", "beta", "reward", "reward_fn", "temperature", "clip_ratio",
    "epsilon", "entropy_coeff", "n", "num_generations", "train_batch_size", "batch_size", "ppo_mini_batch_size",
    "max_response_length", "max_completion_length", "weight_decay",
)  # fmt: skip
MIN_NAME_CHARS: Final = 4  # a shorter name of a run is in many values by chance


@dataclass(frozen=True)
class ConfigShape:
    """The keys of a config. Configs with the same keys share one object."""

    keys: tuple[str, ...] = ()

    @cached_property
    def index(self) -> dict[str, int]:
        return {key: at for at, key in enumerate(self.keys)}

    @cached_property
    def field_keys(self) -> dict[str, str]:
        """The key of each field, empty if there is none. A shorter key is about the run as a whole."""
        return {name: self.find_key(ends) for name, ends in FIELD_KEYS.items()}

    @cached_property
    def own_keys(self) -> tuple[bool, ...]:
        return tuple(OWN_KEY.search(key) is not None for key in self.keys)

    @cached_property
    def digest(self) -> str:
        return blake2s(repr(self.keys).encode("utf-8", "replace"), digest_size=12).hexdigest()

    def find_key(self, ends: Sequence[str]) -> str:
        for end in ends:
            matches = [key for key in self.keys if key == end or key.endswith(f".{end}")]
            if matches:
                return min(matches, key=lambda key: (len(key), key))
        return ""


NO_KEYS: Final = ConfigShape()


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The values of flat keys. Lists are JSON text. `signature` is equal for runs with the same configuration but for
    the seed and names of their own; empty without a config. `named` are the keys whose text has the run's name."""

    shape: ConfigShape = NO_KEYS
    values: tuple[ConfigValue, ...] = ()
    signature: str = ""
    named: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return self.shape.keys

    def get(self, key: str) -> ConfigValue:
        at = self.shape.index.get(key)
        return None if at is None else self.values[at]

    def has(self, key: str) -> bool:
        return key in self.shape.index

    def find_field(self, name: str) -> ConfigValue:
        """Returns the model, the algorithm or the seed."""
        value = self.get(self.shape.field_keys[name])
        wanted = int if name == "seed" else str
        return value if isinstance(value, wanted) and not isinstance(value, bool) else None


@cached(CacheSize.CONFIG_SHAPES)
def share_shape(keys: tuple[str, ...]) -> ConfigShape:
    return ConfigShape(keys)


def map_versions(runs: Iterable[Run]) -> dict[RunId, int]:
    """The version of a run rises with every visible change, so it names the content."""
    return {(run.pk, run.created_at): run.version for run in runs}


cache: NewestCache[RunId, RunConfig] = NewestCache(CacheSize.CONFIG_VALUES, lambda config: len(config.values) + 10)


def load_run_configs(runs: Sequence[Run]) -> dict[int, RunConfig]:
    """Returns the configs by run id. Only those of runs that changed are read."""
    names = {run.pk: run.name for run in runs}

    def load(missing: Sequence[RunId]) -> Mapping[RunId, RunConfig]:
        changed = Run.objects.filter(pk__in=[pk for pk, _created_at in missing])
        rows = changed.annotate(text=Cast("config", TextField())).values_list("pk", "text")
        found = {pk: build_run_config(text, names[pk]) for pk, text in rows}
        return {run: found.get(run[0], RunConfig()) for run in missing}

    return {pk: config for (pk, _), config in cache.load_many(map_versions(runs), load).items()}


def build_run_config(text: str, name: str) -> RunConfig:
    try:
        config = orjson.loads(text)
    except orjson.JSONDecodeError:  # NaN, which only SQLite stores
        config = json.loads(text)
    flat = flatten_config(config, MAX_CONFIG_DEPTH)
    if not flat:
        return RunConfig()
    keys = tuple(sorted(flat))
    shape = share_shape(keys)
    values = tuple([to_scalar(flat[key]) for key in keys])
    needle = name if len(name) >= MIN_NAME_CHARS else None
    named = tuple(
        [key for key, value in zip(keys, values, strict=True) if needle and isinstance(value, str) and needle in value]
    )
    keyed = zip(keys, values, shape.own_keys, strict=True)
    shared = [value for key, value, is_own in keyed if not is_own and key not in named]
    signature = blake2s(f"{shape.digest} {shared!r}".encode("utf-8", "replace"), digest_size=12).hexdigest()
    return RunConfig(shape, values, signature, named)


def to_scalar(value: Any) -> ConfigValue:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, ensure_ascii=False)


def format_config_value(value: Any) -> str:
    """Returns the value as a user would type it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def count_config_values(configs: Iterable[RunConfig]) -> dict[str, int]:
    """Returns how many different values each key has; a config that lacks the key counts as one more."""
    shapes: dict[tuple[str, ...], list[tuple[ConfigValue, ...]]] = {}
    for config in configs:
        if config.keys:
            shapes.setdefault(config.keys, []).append(config.values)
    values: dict[str, set[str]] = {}
    owners: dict[str, int] = {}
    for keys, rows in shapes.items():
        for key, column in zip(keys, zip(*rows, strict=True), strict=True):
            values.setdefault(key, set()).update(map(repr, set(column)))
            owners[key] = owners.get(key, 0) + len(rows)
    total = sum(map(len, shapes.values()))
    return {key: len(own) + (owners[key] < total) for key, own in values.items()}


def list_differing_settings(configs: Iterable[RunConfig]) -> list[str]:
    """Returns the keys that differ, without seeds and names of a run: usual settings first, then those with the fewest
    values."""
    known = list(configs)
    named = {key for config in known for key in config.named}
    counts = [(key, count) for key, count in count_config_values(known).items() if count > 1 and key not in named]

    def rank(item: tuple[str, int]) -> tuple[int, int, str]:
        key, count = item
        end = key.rpartition(".")[2]
        return (USUAL_SETTINGS.index(end) if end in USUAL_SETTINGS else len(USUAL_SETTINGS), count, key)

    return [key for key, _count in sorted(counts, key=rank) if not OWN_KEY.search(key)]
