"""Steps that an older version indexed get the new properties in the background; until then these are unknown."""

from __future__ import annotations

import errno

import pytest

from rollouts.indexing import has_outdated_steps, update_outdated_steps
from rollouts.indexing.correctness import change_correctness_rule, evaluate_due_steps
from rollouts.metrics.sample_curves import load_sample_curve_points
from rollouts.models import Run, Sample, Step, StepTemplate
from rollouts.query import find_samples
from rollouts.samples import PROPERTIES_VERSION, ROWS_VERSION, bodies
from tests.rollouts.support.push import index_file, lines
from tests.support import builders
from tests.support.stored import body_path

pytestmark = pytest.mark.django_db
MISMATCH = "samples/answer-mismatch"


def mismatch_row(n: int, **more: object) -> dict[str, object]:
    row = {
        "prompt": f"q{n % 3}",
        "group": f"g{n % 3}",
        "index": n,
        "response": f"The answer is one of these.\n#### {n + 1}",
    }
    return {**row, "ground_truth": str(n), "score": 1.0, "rewards": {"acc": 1.0, "format": 0.1}, **more}


def make_outdated(run: Run, steps: int) -> None:
    """Indexes steps and leaves their rows as a version without these properties wrote them."""
    for step in range(1, steps + 1):
        index_file(run, lines(*(mismatch_row(n) for n in range(6))), step, format="native", source=f"{step}")
    Sample.objects.update(answer=None, parts=None, opening=None, ending=None, facets=0)
    Step.objects.update(properties=None, facets={"judged": 6, "correct": 6})
    StepTemplate.objects.all().delete()
    run.refresh_from_db()


def load_curve(run: Run) -> list[tuple[int, float]]:
    run.refresh_from_db()
    points = load_sample_curve_points([run.pk], [MISMATCH])
    return [
        (int(step), float(value)) for _, (steps, values) in points for step, value in zip(steps, values, strict=True)
    ]


def test_a_new_step_has_all_properties_at_once(run: Run) -> None:
    index_file(run, lines(*(mismatch_row(n) for n in range(6))), format="native")
    sample = Sample.objects.get(index=3)
    assert (sample.answer, sample.expected, sample.parts) == ("4", "3", {"acc": 1.0, "format": 0.1})
    template = StepTemplate.objects.get()
    assert (template.text, template.samples, template.groups) == ("The answer is one of these. #### \x01", 6, 3)
    assert {template.key} == set(Sample.objects.values_list("opening", flat=True))
    assert Step.objects.get().properties == PROPERTIES_VERSION
    assert Step.objects.get().facets["answer-mismatch"] == 6
    assert load_curve(run) == [(1, 1.0)]
    assert find_samples(run, q=f"is:answer-mismatch alike:{template.template_id}").total == 6
    assert not has_outdated_steps()


def test_older_steps_are_unknown_until_they_are_updated(run: Run) -> None:
    make_outdated(run, 2)
    assert has_outdated_steps()
    assert load_curve(run) == []
    assert update_outdated_steps(max_seconds=0) == 1
    assert load_curve(run) == [(2, 1.0)]
    assert update_outdated_steps() == 1
    assert load_curve(run) == [(1, 1.0), (2, 1.0)]
    assert (update_outdated_steps(), has_outdated_steps()) == (0, False)
    assert StepTemplate.objects.count() == 2


def test_an_update_keeps_ids_and_uses_the_rule_of_the_project(run: Run) -> None:
    builders.member(run.project, "ann", "owner")
    make_outdated(run, 1)
    ids = set(Sample.objects.values_list("pk", flat=True))
    change_correctness_rule(run.project, "n>=4", by=run.project.memberships.get().user)
    evaluate_due_steps(run.project_id)
    updated = Sample.objects.update(answer=None, facets=0)
    assert updated == 6
    Step.objects.update(properties=None)
    update_outdated_steps()
    assert set(Sample.objects.values_list("pk", flat=True)) == ids
    assert Step.objects.get().facets["answer-mismatch"] == find_samples(run, q="is:answer-mismatch").total == 2


def test_a_mismatch_follows_the_rule_of_the_project(run: Run) -> None:
    owner = builders.member(run.project, "ann", "owner")
    index_file(run, lines(*(mismatch_row(n) for n in range(6))), format="native")
    change_correctness_rule(run.project, "score>1", by=owner)
    evaluate_due_steps(run.project_id)
    assert find_samples(run, q="is:answer-mismatch").total == 0
    assert "answer-mismatch" not in Step.objects.get().facets
    assert find_samples(run, q="is:other-answer").total == 6
    change_correctness_rule(run.project, "", by=owner)
    evaluate_due_steps(run.project_id)
    assert find_samples(run, q="is:answer-mismatch").total == 6


def test_a_step_with_deleted_texts_stays_unknown_and_is_not_tried_again(run: Run) -> None:
    make_outdated(run, 1)
    body_path(run.segments.get().path).unlink()
    update_outdated_steps()
    assert not has_outdated_steps()
    assert Sample.objects.filter(answer=None).count() == 6


def test_a_damaged_body_does_not_stop_the_update_of_older_steps(run: Run) -> None:
    make_outdated(run, 2)
    body_path(run.segments.get(dumps__step=2).path).write_bytes(b"damaged")
    assert update_outdated_steps() == 2 and not has_outdated_steps()
    assert set(Sample.objects.filter(answer=None).values_list("step__step", flat=True)) == {2}


def test_an_outage_leaves_the_steps_outdated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    make_outdated(run, 1)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(bodies, "fetch_body_file", refuse)
    with pytest.raises(OSError, match="Input/output"):
        update_outdated_steps()
    assert has_outdated_steps()


def test_answers_and_truths_of_two_dumps_are_compared(run: Run) -> None:
    text = [mismatch_row(n, ground_truth=None, rewards={"acc": 1.0}) for n in range(6)]
    truth = [mismatch_row(n, rewards={"format": 0.5}) for n in range(6)]
    index_file(run, lines(*text), format="native", source="a")
    assert find_samples(run, q="is:other-answer").total == 0
    index_file(run, lines(*truth), format="native", source="b")
    assert find_samples(run, q="is:other-answer").total == 6
    assert Sample.objects.get(index=0).parts == {"acc": 1.0, "format": 0.5}


def test_a_step_that_lacks_only_a_statistic_gets_it_without_its_texts(run: Run) -> None:
    index_file(run, lines(*(mismatch_row(n) for n in range(6))), format="native")
    body_path(run.segments.get().path).unlink()
    Step.objects.update(properties=ROWS_VERSION, parts={})
    assert update_outdated_steps() == 1 and not has_outdated_steps()
    parts = Step.objects.get().parts
    assert parts == {"acc": {"mean": 1.0, "is_score": True}, "format": {"mean": pytest.approx(0.1), "is_score": False}}
