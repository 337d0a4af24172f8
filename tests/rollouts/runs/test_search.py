"""Queries about runs: the terms, the errors, the completion, and the explanation of a query without matches."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from rollouts.metrics import append_points
from rollouts.models import Pin, Project, Run, Step
from rollouts.query import InvalidQueryError
from rollouts.runs import RunTable, complete_run_query, find_runs
from rollouts.samples import MetricPoint
from tests.support import builders

MODELS = ("Qwen/Qwen2.5-1.5B", "meta-llama/Llama-3.2-3B")


def build_run(project: Project, n: int, **fields: Any) -> Run:
    config = {
        "actor": {"optim": {"lr": [1e-6, 3e-6][n % 2]}},
        "critic": {"optim": {"betas": [0.9, 0.99]}},
        "algorithm": {"adv_estimator": ["grpo", "gspo"][n // 2]},
        "model": {"path": MODELS[n % 2]},
        "data": {"seed": n, "shuffle": n == 0},
        "score_scale": n,
    }
    run = builders.run(project, f"sweep-{n}", config=config, framework="verl", tags=["Good run"][n % 2 :], **fields)
    attempt = builders.attempt(run)
    attempt.host = f"node-{n}"
    attempt.save()
    Step.objects.create(run=run, attempt=attempt, split="train", step=1, samples=4, score_mean=0.9, truncated=1)
    Step.objects.create(
        run=run, attempt=attempt, split="train", step=2 + n, samples=4, score_mean=n / 4, flags=n % 2, truncated=n
    )
    append_points(run, attempt, [MetricPoint(1, {"actor/entropy": 9}), MetricPoint(2, {"actor/entropy": n + 0.5})])
    return run


@pytest.fixture
def runs(project: Project) -> list[Run]:
    created = [build_run(project, n, outcome=["", "finished", "failed", "finished"][n]) for n in range(4)]
    user = builders.member(project, "pia", "maintainer")
    Pin.objects.create(project=project, run=created[2], attempt=created[2].attempts.get(), step=1, user=user)
    Run.objects.filter(pk=created[3].pk).update(seen_at=timezone.now() - timedelta(days=3))
    return created


def find_run_numbers(q: str, reader: int | None = None) -> str:
    return "".join(sorted(run.name[-1] for run in find_runs(Run.objects.all(), q, reader=reader).matches))


@pytest.mark.parametrize(
    ("q", "names"),
    [
        ("", "0123"), ("score>0.4", "23"), ("score:0.25..0.5", "12"), ("score=0.5", "2"), ("score!=0.5", "013"),
        ("best>=0.9", "0123"), ("step>=4", "23"), ("steps=2", "0123"), ("samples>7", "0123"), ("flags=1", "13"),
        ("truncated>=50%", "23"), ("seed<2", "01"), ("seed:1,3", "13"),
        ("name:sweep-1", "1"), ('tag:"good run"', "02"), ("-tag:\"Good run\"", "13"), ("good", "02"), ("Good", "02"),
        ("GOOD", ""), ("status:running,failed", "02"), ("status=finished", "13"), ("status!=finished", "02"),
        ("trainer:verl", "0123"), ("framework:verl", "0123"), ("algorithm:GSPO", "23"), ("model:qwen", "02"),
        ("host:node-3", "3"), ("project:math", "0123"), ("owner:nobody", ""),
        ("updated<1d", "012"), ("updated>2d", "3"), ("updated:1d..4d", "3"), ("created<1h", "0123"),
        ("is:pinned", "2"), ("is:flagged,pinned", "123"), ("no:score", ""), ("no:tag", "13"), ("no:config", ""),
        ("lr=1e-6", "02"), ("lr=0.000001", "02"), ("lr>1e-6", "13"), ("lr:1e-7..2e-6", "02"), ("lr!=1e-6", "13"),
        ("actor.optim.lr<2e-6", "02"), ("config.lr<2e-6", "02"), ("config.actor.optim.lr<2e-6", "02"),
        ("shuffle=true", "0"), ("betas:0.99", "0123"), ("score_scale>=2", "23"), ("adv_estimator:grpo", "01"),
        ("actor/entropy>1", "123"), ("metric.actor/entropy<1", "0"),
        ("/^sweep-[01]$/", "01"), ("/Good/", "02"), ('"sweep-2"', "2"), ("sweep -score>0.4", "01"),
        ("(seed=0 or seed=3) -status:failed", "03"), ("score>0.2 lr=1e-6", "2"),
    ],
)  # fmt: skip
def test_a_query_finds_runs(runs: list[Run], q: str, names: str) -> None:
    assert find_run_numbers(q) == names


def test_archived_runs_are_found_only_if_the_query_asks_for_them(runs: list[Run]) -> None:
    Run.objects.filter(pk=runs[0].pk).update(archived_at=timezone.now())
    assert (
        find_run_numbers(""),
        find_run_numbers("is:archived"),
        find_run_numbers("-is:archived"),
        find_run_numbers("sweep-0 or is:archived"),
    ) == (
        "123",
        "0",
        "123",
        "0",
    )


def test_is_mine_depends_on_the_user(project: Project) -> None:
    owner = builders.member(project, "ann", "maintainer")
    builders.run(project, "run-1", owner=owner)
    builders.run(project, "run-2")
    assert (find_run_numbers("is:mine", owner.pk), find_run_numbers("is:mine"), find_run_numbers("owner:ann")) == (
        "1",
        "",
        "1",
    )


@pytest.mark.parametrize(
    ("q", "message", "bad"),
    [
        ("ok scor<0.2", "Did you mean `score`?", "scor<0.2"),
        ("foo:bar", "No run here has `foo`, neither in its config nor as a metric. To search", "foo:bar"),
        ("lrr=1", "Did you mean `lr`?", "lrr=1"),
        ("status:runing", "Did you mean `running`?", "status:runing"),
        ("is:pined", "Did you mean `pinned`?", "is:pined"),
        ("score>high", "`score` needs a number", "high"),
        ("seed<1.5", "needs a whole number", "1.5"),
        ("updated<2", "`updated` needs an age", "2"),
        ("updated:2", "needs a range of ages", "updated:2"),
        ("config.=1", "`config.` needs a key, for example `config.lr=1e-6`", "config.=1"),
        ("score>", "incomplete", "score>"),
        ("lr<fast", "needs a number", "lr<fast"),
    ],
)
def test_an_error_in_a_query_is_explained(runs: list[Run], q: str, message: str, bad: str) -> None:
    with pytest.raises(InvalidQueryError) as caught:
        find_run_numbers(q)
    start, end = caught.value.span
    assert message in str(caught.value)
    assert q[start:end] == bad


def test_a_short_name_of_two_keys_is_not_guessed(project: Project) -> None:
    builders.run(project, "run-1", config={"actor": {"lr": 1}, "critic": {"lr": 2}})
    with pytest.raises(InvalidQueryError, match="could be `actor.lr`, `critic.lr`. Write the whole key"):
        find_run_numbers("lr=1")
    assert find_run_numbers("critic.lr=2") == "1"


def test_a_query_without_matches_shows_what_each_term_excludes(runs: list[Run]) -> None:
    effects = find_runs(Run.objects.all(), "tag:none score>0.2 status:failed").explanation
    assert [(effect.text, effect.alone, effect.without) for effect in effects] == [
        ("tag:none", 0, 1), ("score>0.2", 3, 0), ("status:failed", 1, 0),
    ]  # fmt: skip
    assert effects[0].rest == "score>0.2 status:failed"
    assert find_runs(Run.objects.all(), "score>0.2").explanation == []


# --- completion -------------------------------------------------------------------------------------------------------


def complete_query(q: str, at: int | None = None) -> list[tuple[str, int | None]]:
    table = RunTable(find_runs(Run.objects.all()).table.runs)
    return [(choice.text, choice.count) for choice in complete_run_query(table, q, at).choices]


@pytest.mark.parametrize(
    ("q", "choices"),
    [
        ("sco", [("score", None), ("score_scale", None)]),
        ("status:", [("status:running", 1), ("status:silent", 0), ("status:finished", 2), ("status:failed", 1)]),
        ("status:running,fa", [("status:running,failed", 2)]),
        ("score>0.4 status:f", [("status:finished", 1), ("status:failed", 1)]),
        ("lr=", [("lr=1e-06", 2), ("lr=3e-06", 2)]),
        ("seed", [("seed=0", 1), ("seed=1", 1), ("seed=2", 1), ("seed=3", 1)]),
        ("-is:pin", [("is:pinned", 1)]),
        ("runn", [("status:running", 1)]),
        ("updated<", [("updated<1h", 3), ("updated<1d", 3), ("updated<7d", 4)]),
        ("tag:", [('tag:"Good run"', 2)]),
        ("model:ll", [("model:meta-llama/Llama-3.2-3B", 2)]),
        ("entropy", [("actor/entropy", None)]),
        ("actor/entropy<", [(f"actor/entropy<{n}.5", n) for n in range(4)]),
        ('"sco', []),
    ],
)  # fmt: skip
def test_a_query_about_runs_is_completed(runs: list[Run], q: str, choices: list[tuple[str, int | None]]) -> None:
    assert complete_query(q)[: len(choices) + (q == '"sco')] == choices


def test_many_runs_take_as_few_queries_as_few(project: Project, django_assert_max_num_queries: Any) -> None:
    for n in range(40):
        builders.run(project, f"r-{n}", config={"lr": n, "seed": n})
    with django_assert_max_num_queries(24):
        assert find_run_numbers("score>0 or seed<5 or status:silent or host:x or is:pinned or lr=1") != ""
