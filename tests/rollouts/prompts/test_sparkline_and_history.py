from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from rollouts.metrics.chart_layout import arrange_charts
from rollouts.metrics.sample_curves import load_sparklines
from rollouts.metrics.series import Curve
from rollouts.models import Project, Run, Step
from rollouts.prompts.history import find_prompt_samples
from tests.rollouts.query.test_search import push
from tests.support import builders


def create_scored_steps(
    run: Run, scores: list[float | None], *, attempt: str = "files", superseded: bool = False, kind: str = "global_step"
) -> None:
    launched = builders.attempt(run, attempt)
    rows = [
        Step(
            run=run, attempt=launched, split="train", step_kind=kind, step=step, score_mean=score, superseded=superseded
        )
        for step, score in enumerate(scores)
    ]
    Step.objects.bulk_create(rows)


def test_a_short_run_shows_each_of_its_steps(run: Run) -> None:
    create_scored_steps(run, [0.1, None, 0.3])
    assert load_sparklines([run]) == {run.uid: [0.1, 0.3]}


def test_feed_indices_are_not_drawn_if_the_trainer_has_steps(run: Run, project: Project) -> None:
    create_scored_steps(run, [0.0] * 100, kind="feed_index")
    create_scored_steps(run, [0.1, 0.2])
    other = builders.run(project, "other")
    create_scored_steps(other, [0.5, 0.6], kind="feed_index")
    assert load_sparklines([run, other]) == {run.uid: [0.1, 0.2], other.uid: [0.5, 0.6]}


def test_a_long_run_is_averaged_into_a_few_points_in_two_queries_for_all_runs(run: Run, project: Project) -> None:
    create_scored_steps(run, [float(step) for step in range(640)])
    other = builders.run(project, "other")
    create_scored_steps(other, [1.0] * 3)
    create_scored_steps(other, [9.0] * 3, attempt="old", superseded=True)
    empty = builders.run(project, "empty")
    with CaptureQueriesContext(connection) as queries:
        sparks = load_sparklines([run, other, empty])
    assert len(queries) == 2
    assert sparks[run.uid] == pytest.approx([20 * point + 9.5 for point in range(32)])
    assert sparks[other.uid] == [1.0, 1.0, 1.0] and sparks[empty.uid] == []


def test_the_samples_of_a_prompt_are_found_over_steps_splits_and_attempts(run: Run) -> None:
    for step in (3, 1, 2):
        rows = [{"response": f"{group} at {step}", "group": group, "index": 0} for group in "ab"]
        push(run, rows, step=step)
    push(run, [{"response": "a in eval", "group": "a"}], step=2, split="eval")
    push(run, [{"response": "a again", "group": "a"}], step=3, attempt="again")
    key = find_prompt_samples(run, "").model.objects.filter(tail="a at 1").values_list("prompt_key", flat=True).get()
    assert [row.tail for row in find_prompt_samples(run, key, split="train")] == ["a at 1", "a at 2", "a again"]
    assert [row.tail for row in find_prompt_samples(run, key, attempt="files")] == [
        "a at 1",
        "a at 2",
        "a in eval",
        "a at 3",
    ]
    assert find_prompt_samples(run, key, attempt="all").count() == 5


def build_curves(*values: float | None) -> list[Curve]:
    return [
        {"attempt": "one", "number": 1, "step_kind": "global_step", "steps": [*range(len(values))], "values": [*values]}
    ]


def test_known_metrics_come_first_in_their_order_and_the_rest_by_prefix() -> None:
    names = [
        "perf/mfu/actor",
        "timing_s/gen",
        "timing_s/step",
        "val-core/openai/gsm8k/acc/mean@8",
        "critic/score/mean",
        "x",
    ]
    others = ["val-core/openai/gsm8k/acc/best@8/mean", "val-core/openai/gsm8k/acc/maj@8/mean"]
    layout = arrange_charts([*names, *others, "actor/entropy", "actor/lr", "timing_s/ref"])
    assert [(chart.title, chart.names, chart.kind) for chart in layout.default] == [
        ("score", ("critic/score/mean",), "line"),
        ("val-core/openai/gsm8k/acc/mean@8", ("val-core/openai/gsm8k/acc/mean@8",), "line"),
        ("entropy", ("actor/entropy",), "line"),
        ("seconds", ("timing_s/step", "timing_s/gen"), "line"),
    ]
    assert {prefix: [chart.title for chart in charts] for prefix, charts in layout.groups.items()} == {
        "": ["actor/lr", "perf/mfu/actor", "timing_s/ref", *others, "x"],
    }
    assert layout.merged == ["actor", "perf", "timing_s", "val-core"]


def test_a_section_has_three_charts_or_is_a_part_of_other() -> None:
    layout = arrange_charts(["a/1", "a/2", "a/3", "b/1", "b/2"])
    assert {prefix: [chart.key for chart in charts] for prefix, charts in layout.groups.items()} == {
        "a": ["a/1", "a/2", "a/3"],
        "": ["b/1", "b/2"],
    }
    assert list(layout.groups)[-1] == "" and layout.merged == ["b"]


def test_reward_parts_are_stacked_even_if_one_of_them_is_constant() -> None:
    names = [f"rewards/{part}/mean" for part in ("acc", "format", "length")]
    curves = {names[0]: build_curves(0.1, 0.5), names[1]: build_curves(1.0, 1.0), names[2]: build_curves(-0.1, -0.2)}
    assert [(chart.title, chart.names, chart.kind) for chart in arrange_charts(names, [curves]).default] == [
        ("reward parts", tuple(names), "stack")
    ]
    assert arrange_charts(names[:1]).default == []


def test_reward_parts_of_samples_are_stacked_if_the_trainer_logs_none() -> None:
    parts = [f"samples/parts/{part}" for part in ("acc", "format")]
    evals = [f"samples/eval/parts/{part}" for part in ("acc", "format")]
    logged = [f"rewards/{part}/mean" for part in ("acc", "format")]
    stacks = [("reward parts", tuple(parts), "stack"), ("reward parts of evaluations", tuple(evals), "stack")]
    assert [(chart.title, chart.names, chart.kind) for chart in arrange_charts([*parts, *evals]).default] == stacks
    layout = arrange_charts([*logged, *parts])
    assert [chart.names for chart in layout.default] == [tuple(logged)]
    assert [chart.title for chart in layout.groups[""]] == parts


def test_numbers_that_are_too_large_for_a_reward_are_not_stacked() -> None:
    names = [f"samples/parts/{part}" for part in ("acc", "format", "tokens")]
    curves = {names[0]: build_curves(0.1, 0.5), names[1]: build_curves(1.0, 0.5), names[2]: build_curves(90.0, 512.0)}
    layout = arrange_charts(names, [curves])
    assert [chart.names for chart in layout.default] == [tuple(names[:2])]
    assert [chart.title for chart in layout.groups[""]] == names[2:]


@pytest.mark.parametrize(
    ("logged", "titles"),
    [
        (
            ["train/reward", "train/completions/mean_length", "train/entropy", "train/loss", "train/step_time"],
            ["score", "response length", "entropy", "policy loss", "seconds"],
        ),
        (
            ["rollout/reward", "rollout/response_len/mean", "train/pg_loss", "train/grad_norm", "perf/rollout_time"],
            ["score", "response length", "policy loss", "gradient norm", "seconds"],
        ),
        (
            ["critic/score/mean", "val_correct/all/mean", "critic/entropy/mean", "actor/grad_norm", "time/step_total"],
            ["score", "val_correct/all/mean", "entropy", "gradient norm", "seconds"],
        ),
        (["code/acc", "case/acc", "BoN (4, 4)/acc"], ["code/acc", "case/acc", "BoN (4, 4)/acc"]),
    ],
    ids=["TRL", "slime", "ROLL", "CURE"],
)
def test_the_main_metrics_of_each_trainer_come_first_in_its_overview(logged: list[str], titles: list[str]) -> None:
    layout = arrange_charts([*logged, "train/learning_rate", "eval/runtime"])
    assert [chart.title for chart in layout.default] == titles
    assert (set(layout.groups), layout.merged) == ({""}, ["eval", "train"])


def test_metrics_that_never_change_are_collapsed_with_their_value() -> None:
    by_name = {
        "actor/lr": build_curves(1e-6, 1e-6),
        "actor/entropy": build_curves(1.0, 0.5),
        "once": build_curves(3.0),
        "nan": build_curves(None, None),
    }
    other = {"actor/lr": build_curves(1e-6, 1e-6), "kept": build_curves(1.0, 1.0)}
    layout = arrange_charts(
        ["actor/lr", "actor/entropy", "once", "nan", "kept"], [by_name, other, {"kept": build_curves(2.0, 2.0)}]
    )
    assert layout.constant == {"actor/lr": 1e-6, "nan": None}
    assert [chart.title for chart in layout.default] == ["entropy"]
    assert [chart.title for chart in layout.groups[""]] == ["kept", "once"]
