"""The benchmark: its run with many steps is a valid run, and its report lists missed budgets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dashboard.pages.common import step_strip
from rolloutdeck.client.status import RunStatus
from rollouts.models import Run, Sample
from rollouts.samples import bodies
from scripts.bench import load, seed
from scripts.bench.report import Report, Row, build_table
from tests.rollouts.support.push import index_file, lines

pytestmark = pytest.mark.django_db


def test_a_run_that_is_made_longer_repeats_its_steps(run: Run) -> None:
    for step in (1, 2):
        rows = [{"prompt": "1+1?", "response": f"{step} and {n}", "score": step / 4} for n in range(3)]
        index_file(run, lines(*rows), step)
    before = Run.objects.get(pk=run.pk).version
    seed.grow(run, 7)
    run.refresh_from_db()
    assert run.version > before
    assert list(run.steps.order_by("step").values_list("step", "samples")) == [(step, 3) for step in range(1, 8)]
    rendered = step_strip.load_step_strip(run, "train")
    assert [bar.score for bar in rendered.bars] == [0.25, 0.5, 0.25, 0.5, 0.25, 0.5, 0.25]
    rows = list(Sample.objects.filter(step__run=run).select_related("step"))
    result = bodies.load_bodies(rows)
    assert len(result) == 21
    assert all(result[row.pk].response.startswith(f"{2 - row.step.step % 2} and") for row in rows)


@pytest.mark.parametrize(
    ("measured", "budget", "missed"),
    [
        ("11.9 ms", "<= 12 ms", []),
        ("12.1 ms", "<= 12 ms", ["<= 12 ms"]),
        ("0.94", "<= 1 ms", []),
        ("9,999 samples/s", ">= 10,000", [">= 10,000"]),
        ("10,000 samples/s", ">= 10,000", []),
        ("420 ms, 1.18 x of 10 steps", "<= 1.2 x", []),
        ("11 ms, 1.42 x", "<= 1.3 x", ["<= 1.3 x"]),
        ("1.91 x its 1.40 s CPU", "<= 1.5 x", ["<= 1.5 x"]),
        ("58.0 KB, in Chinese 61.2", "<= 60 KB", []),
        ("160 ms, 12 hits", "<= 600 ms at 630 MB", []),
        ("5,120 rows, 0 lost", ">= 5,120 rows, <= 0 lost", []),
        ("0 rows, 1 lost", ">= 5,120 rows, <= 0 lost", [">= 5,120 rows", "<= 0 lost"]),
        ("701", "<= 700 MB, flat", ["<= 700 MB"]),
        ("33 ms", "30 ms when the budgets were set", []),
        ("3 x", "", []),
    ],
)
def test_a_limit_is_compared_with_the_number_of_the_same_unit(measured: str, budget: str, missed: list[str]) -> None:
    assert Row("what", measured, budget).list_missed_limits() == missed


def test_rows_that_did_not_arrive_are_counted() -> None:
    status = RunStatus(logged=9, sent=7, indexed=6, rejected=1, dropped={"the disk is full": 2}, failed_calls=1)
    run = SimpleNamespace(status=lambda: status, finish=lambda: None)
    assert load.finish_run(run) == (6, 4)
    nothing = SimpleNamespace(status=lambda: RunStatus(indexed=0), finish=lambda: None)
    assert load.finish_run(nothing) == (0, 0)


def test_a_slow_machine_has_more_time_but_not_more_memory_or_a_higher_ratio() -> None:
    report = Report(slowness=2.0)
    report.show("page", "29 ms", "<= 15 ms")
    report.show("ratio", "29 ms, 1.40 x", "<= 15 ms, <= 1.3 x")
    report.show("memory", "700 MB", "<= 650 MB")
    report.show("blocked", "2.1", "<= 1 ms")
    assert report.list_missed() == [
        "ratio: 29 ms, 1.40 x, budget <= 1.3 x",
        "memory: 700 MB, budget <= 650 MB",
        "blocked: 2.1, budget <= 2 ms",
    ]
    assert build_table(report.rows)[2] == "| page | 29 ms | <= 15 ms, here 30 ms |"


def test_a_budget_without_a_measurement_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no number"):
        Row("what", "not measured", "<= 3 ms").list_missed_limits()


def test_the_report_lists_missed_budgets_and_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.show("a page", "29 ms", "<= 30 ms")
    report.show("  all of it", "31 ms", "<= 30 ms")
    report.show("without a budget", "3 MB")
    assert report.list_missed() == ["all of it: 31 ms, budget <= 30 ms"]
    assert capsys.readouterr().out.count("\n") == 3
    assert build_table(report.rows)[2:] == [
        "| a page | 29 ms | <= 30 ms |",
        "| &nbsp;&nbsp;all of it | 31 ms | <= 30 ms |",
        "| without a budget | 3 MB | |",
    ]
