"""Metrics that CURE's stages append to a text: their step, and their names in training and evaluation."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.formats import DumpContext, select_format
from rollouts.formats.cure import results as cure_results
from rollouts.samples.record import LineProblem, MetricPoint

DATA = Path(__file__).parents[3] / "data/cure/step0/results/results-rl-Qwen.Qwen2.5-7B-Instruct-CodeContests.txt"
TRAINING, EVALUATION = "results/results-rl-m-D.txt", "evaluation/results/results-eval-m-D.txt"
# As eval.py of CURE 69fe174 wrote it.
EVALUATED = """\
code acc (average proportion of tasks the generated code can pass): 0.5625
code accumulate acc (average proportion of unit tests the generated code can pass): 0.6625
estimated unit test acc (average proportion of tasks that the generated unit test can pass all correct code): 0.25
estimated unit test accumulate acc (average proportion of correct code that the generated unit test can pass): 0.5
estimated p_01: 0.125
BoN setting (4, 4):
acc: 0.75, accumulate acc: 0.85
code average response length: 75.25, unit test average response length: 108.625
"""


def read_points(text: str, name: str = TRAINING, step: int | None = None) -> dict[int, dict[str, float | None]]:
    context = DumpContext(name, step=step, step_kind="iteration")
    form = select_format(name, text.encode()[:65536])
    assert form.name == "cure-results"
    items = list(form.read(io.BytesIO(text.encode()), context))
    assert all(isinstance(item, MetricPoint) and item.step_kind == "iteration" for item in items)
    return {item.step: item.values for item in items if isinstance(item, MetricPoint)}


def test_figures_of_execute_py_belong_to_the_step_that_sample_py_began() -> None:
    text = DATA.read_text()
    other = text.replace("0.6875", "0.5").replace("(4, 4)", "(8, 8)")
    result = read_points(text + other + "code response length: 40.0, case response length: 80.5\n", step=3)
    assert [values["case/acc"] for values in result.values() if "case/acc" in values] == [0.6875, 0.5]
    assert result[3]["code/response length"] == 47.5625 and result[3]["p_00"] == 0.14285714285714285
    assert result[3]["BoN (2, 2)/accumulate acc"] == 0.85 and result[3]["BoN (4, 4)/acc"] == 1.0
    assert result[4]["BoN (8, 8)/acc"] == 1.0 and "BoN (4, 4)/acc" not in result[4]
    assert result[5] == {"code/response length": 40.0, "case/response length": 80.5}


def test_the_last_evaluation_has_the_given_step_and_the_metric_names_of_the_training() -> None:
    result = read_points(EVALUATED.replace("0.25", "0.75") + EVALUATED, EVALUATION, step=20)
    assert list(result) == [20] and result[20]["eval/case/acc"] == 0.25
    training_names = read_points(DATA.read_text())[0].keys()
    assert {name.removeprefix("eval/") for name in result[20]} < training_names


def test_a_line_that_is_not_of_cure_is_reported_and_the_others_are_read() -> None:
    body = b"my own note\n" + DATA.read_bytes() + b"pass@8: 0,5\np_11: 0.25\ncode acc: 1e999\n\xff\xfe: 1\n"
    items = list(cure_results.read(io.BytesIO(body), DumpContext(TRAINING)))
    assert [item.line for item in items if isinstance(item, LineProblem)] == [1, 11]
    (point,) = [item for item in items if isinstance(item, MetricPoint)]
    assert point.step == 1 and point.values["p_11"] == 0.25 and point.values["code/acc"] == float("inf")


@pytest.mark.parametrize("body", [b"", b"\n\n", b"code response length:\n", b"x" * 5000, b"a: " * 3000])
def test_a_text_without_figures_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableDumpError, match="no metrics of CURE"):
        list(cure_results.read(io.BytesIO(body), DumpContext(TRAINING)))


def test_a_file_with_too_many_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cure_results, "MAX_STEPS", 3)
    assert len(read_points("code response length: 1.0\n" * 3)) == 3
    with pytest.raises(UnreadableDumpError, match="more than 3 steps"):
        read_points("code response length: 1.0\n" * 4)


def remove_sample_lines(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("code response length"))


def test_without_the_lines_of_sample_py_a_step_begins_with_execute_pys_first_line() -> None:
    text = remove_sample_lines(DATA.read_text())
    result = read_points(text + text.replace("0.6875", "0.5"), step=3)
    assert [(step, values["case/acc"]) for step, values in result.items()] == [(3, 0.6875), (4, 0.5)]
    assert result[4]["BoN (4, 4)/acc"] == 1.0


def test_programs_that_were_run_twice_are_still_one_step() -> None:
    text = DATA.read_text()
    assert list(read_points(text + remove_sample_lines(text), step=3)) == [3]
