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
    (N_("aborted"), ("response/aborted_ratio",)),
)  # fmt: skip
KINDS: Final = {"seconds": "stack", FAN_TITLE: "fan"}


@dataclass(frozen=True, slots=True)
class Chart:
    """The metrics of one chart. `kind` is `line`, `stack`, or `fan`: the second metric between the two others."""

    title: str
    names: tuple[str, ...]
    kind: str = "line"


@dataclass(frozen=True, slots=True)
class ChartLayout:
    """The `default` charts, the other charts in `groups` by prefix, and the `constant` metrics with their value."""

    default: list[Chart] = field(default_factory=list)
    groups: dict[str, list[Chart]] = field(default_factory=dict)
    constant: dict[str, float | None] = field(default_factory=dict)


def arrange_charts(names: Iterable[str], curves: Iterable[Mapping[str, Sequence[Curve]]] = ()) -> ChartLayout:
    """Returns the layout for these metric names. With the `curves` of the runs (`load_curves(…).values()`), metrics
    that are constant in all of them have no chart."""
    constant = find_constants(list(curves))
    if not constant.keys() >= set(SCORE_FAN_METRICS):  # the fan needs its three metrics
        constant = {name: value for name, value in constant.items() if name not in SCORE_FAN_METRICS}
    remaining = sorted(name for name in names if name not in constant)
    layout = ChartLayout(constant={name: constant[name] for name in sorted(set(names) & constant.keys())})
    for title, patterns in DEFAULTS:
        matched = dict.fromkeys(name for pattern in patterns for name in remaining if fnmatchcase(name, pattern))
        remaining = [name for name in remaining if name not in matched]
        if title == "*":
            layout.default.extend(Chart(name, (name,)) for name in matched)
        elif matched:
            layout.default.append(Chart(title, tuple(matched), KINDS.get(title, "line")))
    groups: dict[str, list[Chart]] = defaultdict(list)
    for name in remaining:
        prefix, slash, _ = name.partition("/")  # `actor/perf/mfu` is in group `actor`
        groups[prefix if slash else ""].append(Chart(name, (name,)))
    layout.groups.update(sorted(groups.items()))
    return layout


def find_constants(runs: Sequence[Mapping[str, Sequence[Curve]]]) -> dict[str, float | None]:
    """Returns the metrics with two or more points that all have the same value, in all runs."""
    values: dict[str, set[float | None]] = defaultdict(set)
    points: dict[str, int] = defaultdict(int)
    for name, curves in chain.from_iterable(run.items() for run in runs):
        for curve in curves:
            values[name].update(curve["values"])
            points[name] += len(curve["values"])
    return {name: next(iter(own)) for name, own in values.items() if len(own) == 1 and points[name] > 1}
