"""Decides which charts the overview of a run shows, and in which order. Metric names are matched by pattern."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain
from typing import Final

from django.utils.translation import gettext_noop as N_

from rollouts.metrics.series import Curve

FAN_TITLE: Final = N_("score p10, p50, p90")
SCORE_FAN_METRICS: Final = ("samples/score/p10", "samples/score/p50", "samples/score/p90")
STACK_TITLE: Final = N_("reward parts")
EVAL_STACK_TITLE: Final = N_("reward parts of evaluations")
SAMPLE_PART_PATTERNS: Final = ("samples/parts/*",)  # only if the trainer logs none
EVAL_PART_PATTERNS: Final = ("samples/eval/parts/*",)
REWARD_PART_PATTERNS: Final = ("rewards/*/mean", "train/rewards/*/mean", "reward_parts/*", "train/reward_parts/*")
# One entry per default chart: its title and patterns of the metrics in it. The title `*` creates one chart per metric.
# A metric is in the first entry that matches.
DEFAULTS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (
        N_("score"),
        (
            "critic/score/mean", "train/reward", "rollout/reward", "score/mean", "score_mean", "score", "reward",
            "reward_mean", "rewards/mean",
        ),
    ),
    (
        "*",
        (
            "val-core/*/mean@*", "eval/reward", "eval/score", "eval_reward", "val/score", "val/accuracy",
            "val_correct/all/mean", "val_score/all/mean", "code/acc", "case/acc", "BoN (*)/acc",
        ),
    ),
    (FAN_TITLE, SCORE_FAN_METRICS),
    (STACK_TITLE, REWARD_PART_PATTERNS),
    (STACK_TITLE, SAMPLE_PART_PATTERNS),
    (EVAL_STACK_TITLE, EVAL_PART_PATTERNS),
    (N_("re-scores"), ("samples/rescores/*",)),
    (N_("re-scores of evaluations"), ("samples/eval/rescores/*",)),
    (N_("zero-variance groups"), ("samples/zerovar", "samples/solve-all", "samples/solve-none")),
    (
        N_("response length"),
        (
            "response_length/mean", "response_length/max", "train/completions/mean_length",
            "train/completions/max_length", "rollout/response_len/mean", "rollout/response_len/max",
            "completions/mean_length", "completion_length",
        ),
    ),
    (
        N_("entropy"),
        ("actor/entropy", "train/entropy", "train/entropy_loss", "critic/entropy/mean", "entropy", "policy/entropy"),
    ),
    (N_("policy loss"), ("actor/pg_loss", "train/pg_loss", "train/loss", "policy_loss", "loss", "loss/policy")),
    (N_("KL to the old policy"), ("actor/ppo_kl", "train/ppo_kl", "kl", "approx_kl", "objective/kl")),
    (N_("gradient norm"), ("actor/grad_norm", "train/grad_norm", "grad_norm")),
    (
        N_("clipped fraction"),
        (
            "actor/pg_clipfrac", "train/pg_clipfrac", "train/clip_ratio/region_mean", "clip_ratio",
            "clip_ratio/region_mean", "policy/clipfrac_avg",
        ),
    ),
    (
        N_("rollout/trainer probability difference"),
        (
            "training/rollout_probs_diff_mean", "train/sampling/sampling_logp_difference/mean",
            "train/train_rollout_logprob_abs_diff",
        ),
    ),
    (
        N_("seconds"),
        (
            "timing_s/step", "train/step_time", "perf/step_time", "time/step_total", "timing_s/gen",
            "perf/rollout_time", "time/step_generate", "timing_s/update_actor", "perf/train_time", "time/step_train",
        ),
    ),
    (N_("throughput"), ("perf/throughput", "throughput", "tokens_per_second")),
    (N_("staleness"), ("samples/staleness/mean", "samples/staleness/max")),
    (N_("aborted"), ("response/aborted_ratio",)),
)  # fmt: skip
KINDS: Final = {STACK_TITLE: "stack", EVAL_STACK_TITLE: "stack", FAN_TITLE: "fan"}
MIN_SECTION_CHARTS: Final = 3  # smaller sections are merged
MAX_STACKED_PARTS: Final = 12
MAX_REWARD: Final = 100  # larger values are rather lengths and times than parts of a reward


@dataclass(frozen=True, slots=True)
class Chart:
    """The metrics of one chart. `kind` is `line`, `stack` (parts of a sum), or `fan`: the second metric between the two
    others. `key` identifies the chart in every language, in URLs and in the project's settings."""

    title: str
    names: tuple[str, ...]
    kind: str = "line"
    key: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.title)


@dataclass(frozen=True, slots=True)
class ChartLayout:
    """The `default` charts, the other charts in `groups` by prefix, and the `constant` metrics with their value.

    The group "" has the metrics without a prefix and those of the `merged` prefixes, which have too few charts.
    """

    default: list[Chart] = field(default_factory=list)
    groups: dict[str, list[Chart]] = field(default_factory=dict)
    merged: list[str] = field(default_factory=list)
    constant: dict[str, float | None] = field(default_factory=dict)


def arrange_charts(names: Iterable[str], curves: Iterable[Mapping[str, Sequence[Curve]]] = ()) -> ChartLayout:
    """Metrics that are constant in the `curves` of all runs (`load_curves(…).values()`) have no chart."""
    curves = list(curves)
    names = list(names)
    constant = exclude_needed_constants(names, find_constants(curves))
    too_large = find_too_large(curves)
    remaining = sorted(name for name in names if name not in constant)
    layout = ChartLayout(constant={name: constant[name] for name in sorted(set(names) & constant.keys())})
    for title, patterns in DEFAULTS:
        matched = dict.fromkeys(name for pattern in patterns for name in remaining if fnmatchcase(name, pattern))
        if KINDS.get(title) == "stack":
            matched = {name: None for name in matched if name not in too_large}
            has_one = any(chart.title == title for chart in layout.default)
            if has_one or not 1 < len(matched) <= MAX_STACKED_PARTS:
                continue
        remaining = [name for name in remaining if name not in matched]
        if title == "*":
            layout.default.extend(Chart(name, (name,)) for name in matched)
        elif matched:
            layout.default.append(Chart(title, tuple(matched), KINDS.get(title, "line")))
    groups: dict[str, list[Chart]] = defaultdict(list)
    for name in remaining:
        prefix, slash, _ = name.partition("/")  # `actor/perf/mfu` is in group `actor`
        groups[prefix if slash else ""].append(Chart(name, (name,)))
    layout.merged.extend(sorted(prefix for prefix in groups if prefix and len(groups[prefix]) < MIN_SECTION_CHARTS))
    small = [chart for prefix in layout.merged for chart in groups.pop(prefix)]
    if small:
        groups[""] = sorted([*groups[""], *small], key=lambda chart: chart.title)
    layout.groups.update(sorted(groups.items(), key=lambda item: (not item[0], item[0])))
    return layout


def exclude_needed_constants(names: Sequence[str], constant: dict[str, float | None]) -> dict[str, float | None]:
    """Returns the constant metrics without those whose chart needs all its metrics: the fan, and stacks of parts."""
    stacks = [patterns for title, patterns in DEFAULTS if KINDS.get(title) == "stack"]
    parts = [[name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)] for patterns in stacks]
    whole = [own for own in (SCORE_FAN_METRICS, *parts) if not constant.keys() >= set(own)]
    return {name: value for name, value in constant.items() if not any(name in own for own in whole)}


def find_too_large(runs: Sequence[Mapping[str, Sequence[Curve]]]) -> set[str]:
    """Returns the metrics with a value that is too large for a reward."""
    return {
        name
        for name, curves in chain.from_iterable(run.items() for run in runs)
        if any(abs(value) > MAX_REWARD for curve in curves for value in curve["values"] if value is not None)
    }


def find_constants(runs: Sequence[Mapping[str, Sequence[Curve]]]) -> dict[str, float | None]:
    """Returns the metrics with two or more points that all have the same value, in all runs."""
    values: dict[str, set[float | None]] = defaultdict(set)
    points: dict[str, int] = defaultdict(int)
    for name, curves in chain.from_iterable(run.items() for run in runs):
        for curve in curves:
            values[name].update(curve["values"])
            points[name] += len(curve["values"])
    return {name: next(iter(own)) for name, own in values.items() if len(own) == 1 and points[name] > 1}
