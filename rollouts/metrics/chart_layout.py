"""Which charts a run's overview draws, and in which order. Names are matched as they are logged, by pattern."""

from __future__ import annotations

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
# One entry per default chart: its title, and patterns of the names that it draws together. A title ending in `*` makes
# one chart per name. The first pattern group that matches takes a name.
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
    """Names drawn in one picture; `kind` is `line`, `stack`, or `fan`: the second between the others."""

    title: str
    names: tuple[str, ...]
    kind: str = "line"


@dataclass(frozen=True, slots=True)
class ChartLayout:
    """`default` charts first, then `groups` by prefix; `constant` metrics are named with their one value."""

    default: list[Chart] = field(default_factory=list)
    groups: dict[str, list[Chart]] = field(default_factory=dict)
    constant: dict[str, float | None] = field(default_factory=dict)


def arrange_charts(names: Iterable[str], curves: Iterable[Mapping[str, Sequence[Curve]]] = ()) -> ChartLayout:
    """The layout for these metric names. With the `curves` of the shown runs (`series.read(…).values()`), metrics that
    never change in any of them are collapsed, default charts too."""
    flat = constants(list(curves))
    if not flat.keys() >= set(SCORE_FAN_METRICS):  # one line of the three may lie still
        flat = {name: value for name, value in flat.items() if name not in SCORE_FAN_METRICS}
    left = sorted(name for name in names if name not in flat)
    layout = ChartLayout(constant={name: flat[name] for name in sorted(set(names) & flat.keys())})
    for title, patterns in DEFAULTS:
        matched = [name for pattern in patterns for name in left if fnmatchcase(name, pattern)]
        left = [name for name in left if name not in matched]
        layout.default.extend(drawn(title, list(dict.fromkeys(matched))))
    groups: dict[str, list[Chart]] = defaultdict(list)
    for name in left:
        groups[prefix_of(name)].append(Chart(name, (name,)))
    layout.groups.update(sorted(groups.items()))
    return layout


def drawn(title: str, names: list[str]) -> list[Chart]:
    if title == "*":
        return [Chart(name, (name,)) for name in names]
    return [Chart(title, tuple(names), KINDS.get(title, "line"))] if names else []


def prefix_of(name: str) -> str:
    """What stands before the last slash but one level deep: `actor/perf/mfu` belongs to `actor`."""
    head, slash, _ = name.partition("/")
    return head if slash else ""


def constants(runs: Sequence[Mapping[str, Sequence[Curve]]]) -> dict[str, float | None]:
    """Metrics with at least two points that all have one value, the same in every run that logged them."""
    values: dict[str, set[float | None]] = defaultdict(set)
    points: dict[str, int] = defaultdict(int)
    for name, curves in chain.from_iterable(run.items() for run in runs):
        for curve in curves:
            values[name].update(curve["values"])
            points[name] += len(curve["values"])
    return {name: next(iter(found)) for name, found in values.items() if len(found) == 1 and points[name] > 1}
