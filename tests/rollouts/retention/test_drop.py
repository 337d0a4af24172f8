"""What a policy drops of training steps, and what it never drops."""

from __future__ import annotations

import errno
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from rollouts.findings import add_query_evidence, add_sample_evidence, create_finding
from rollouts.indexing import reindex_run
from rollouts.indexing.indexer import index_dump
from rollouts.maintenance import compact_body_files
from rollouts.models import Dump, Label, Pin, Project, RetentionPolicy, Run, Sample, Segment, Step
from rollouts.query import find_samples
from rollouts.rescores import create_rescore, save_results
from rollouts.retention import apply as passes
from rollouts.retention import apply_due_policies, apply_policy, build_report, update_policy
from rollouts.retention.limits import find_surplus_steps
from rollouts.retention.sizes import load_step_sizes
from rollouts.samples import RescoreResult, load_bodies, load_results
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders
from tests.support.stored import body_path, list_stored, raw_path

pytestmark = pytest.mark.django_db
GROUPS, PER_GROUP = 8, 4


def write_step(run: Run, step: int, split: str = "train", **header: Any) -> Dump:
    """A step with 8 groups of 4 samples; the scores of group g are g."""
    rows = [
        generation(f"question {group}", f"answer {number} of {group} in {step}", float(group), step)
        for group in range(GROUPS)
        for number in range(PER_GROUP)
    ]
    return index_file(run, lines(*rows), step, split=split, source=f"{split}/{step}.jsonl", **header)


def age_steps(run: Run, days: int = 60) -> None:
    """Makes all data old, and the files too: an upload of the same bytes may be in progress for a minute."""
    old = timezone.now() - timedelta(days=days)
    Step.objects.filter(run=run).update(created_at=old)
    Dump.objects.filter(run=run).update(received_at=old)
    for dump in Dump.objects.filter(run=run):
        path = raw_path(run.project_id, dump.sha256)
        if path.exists():
            path.set_age(1e6)


def update_and_apply_policy(project: Project, owner: User, **values: Any) -> RetentionPolicy:
    policy = update_policy(project, owner, values)
    apply_policy(policy, None)
    return policy


def count_samples(run: Run, split: str = "train") -> dict[int, int]:
    steps = Step.objects.filter(run=run, split=split).order_by("step")
    return {step.step: Sample.objects.filter(step=step).count() for step in steps}


def check_files(run: Run) -> None:
    """Every row has its file, and every sample its text."""
    for segment in Segment.objects.filter(run=run):
        assert body_path(segment.path).exists()
    for dump in Dump.objects.filter(run=run, raw_dropped_at=None):
        assert raw_path(run.project_id, dump.sha256).exists()
    rows = list(Sample.objects.filter(step__run=run).select_related("step"))
    bodies = load_bodies(rows)
    for row in rows:
        body = bodies[row.pk]
        assert body.score == row.score and body.response.endswith(f"in {row.step.step}")


@pytest.fixture
def run_with_old_steps(run: Run) -> Run:
    """Steps 1 to 12, and two evaluations, 60 days old."""
    for step in range(1, 13):
        write_step(run, step)
    for step in (4, 8):
        write_step(run, step, "eval")
    age_steps(run)
    return run


def test_everything_is_kept_by_default(run_with_old_steps: Run, owner: User) -> None:
    before = count_samples(run_with_old_steps)
    update_and_apply_policy(run_with_old_steps.project, owner)
    assert count_samples(run_with_old_steps) == before
    assert Dump.objects.filter(raw_dropped_at__isnull=False).count() == 0


def test_every_kth_step_evaluation_and_the_last_step_stay(run_with_old_steps: Run, owner: User) -> None:
    update_and_apply_policy(run_with_old_steps.project, owner, train="every", every=5)
    assert {step for step, count in count_samples(run_with_old_steps).items() if count} == {5, 10, 12}
    assert count_samples(run_with_old_steps, "eval") == {4: 32, 8: 32}
    check_files(run_with_old_steps)


def test_recent_steps_stay(run_with_old_steps: Run, owner: User) -> None:
    update_and_apply_policy(run_with_old_steps.project, owner, train="every", every=5, after_days=61)
    assert all(count == 32 for count in count_samples(run_with_old_steps).values())


def test_a_sample_of_whole_groups_with_best_and_worst_stays(run_with_old_steps: Run, owner: User) -> None:
    update_and_apply_policy(run_with_old_steps.project, owner, train="sample", groups=2, extremes=1)
    for step in Step.objects.filter(run=run_with_old_steps, split="train").exclude(step=12):
        rows = Sample.objects.filter(step=step)
        scores = sorted({row.score for row in rows})
        assert scores[0] == 0.0 and scores[-1] == 7.0 and 2 <= len(scores) <= 4
        assert rows.count() == PER_GROUP * len(scores), "groups are whole"
        assert step.dropped == 32 - rows.count()
    check_files(run_with_old_steps)


def test_the_sample_depends_on_the_seed_and_a_second_pass_drops_nothing(run_with_old_steps: Run, owner: User) -> None:
    policy = update_and_apply_policy(run_with_old_steps.project, owner, train="sample", groups=3, extremes=0, seed=1)
    kept = set(Sample.objects.filter(step__split="train").values_list("pk", flat=True))
    assert build_report(policy)["totals"]["drops"] == 0
    RetentionPolicy.objects.update(finished_at=None)
    assert apply_policy(policy, None) == 0
    assert set(Sample.objects.filter(step__split="train").values_list("pk", flat=True)) == kept
    other = builders.run(run_with_old_steps.project, "other")
    write_step(other, 1)
    write_step(other, 2)
    groups = {step: frozenset(Sample.objects.filter(step=step).values_list("group", flat=True))
              for step in Step.objects.filter(run=run_with_old_steps, split="train")}  # fmt: skip
    assert len(set(groups.values())) > 1, "each step has its own sample"


def test_statistics_of_a_step_stay_those_of_all_samples(run_with_old_steps: Run, owner: User) -> None:
    names = ("samples", "groups", "score_mean", "score_max", "histogram", "facets", "length_mean", "rescores")
    rescore, _created = create_rescore(
        run_with_old_steps, owner, name="score.v2", kind="function", source="f", digest="1"
    )
    scores = Sample.objects.filter(step__step=3, step__split="train").values_list("pk", "score")
    save_results(rescore, {pk: RescoreResult(score) for pk, score in scores})
    before = Step.objects.filter(run=run_with_old_steps, step=3).values(*names).get()
    update_and_apply_policy(run_with_old_steps.project, owner, train="sample", groups=2)
    step = Step.objects.get(run=run_with_old_steps, step=3)
    assert Step.objects.filter(run=run_with_old_steps, step=3).values(*names).get() == before
    assert step.dropped > 0 and step.dropped_rule == "sample" and step.dropped_at
    builders.flag(Sample.objects.filter(step=step)[0].pk, owner)
    step.refresh_from_db()
    assert step.flags == 1 and step.samples == 32
    left = set(Sample.objects.filter(step=step).values_list("pk", flat=True))
    rescore.refresh_from_db()
    assert load_results(step, rescore).keys() == left and rescore.results == len(left) < 32
    found = find_samples(run_with_old_steps, split="train")
    assert found.total == Sample.objects.filter(step__split="train").count() == found.samples.count()


@pytest.mark.parametrize("train", [{"train": "every", "every": 100}, {"train": "sample", "groups": 1, "extremes": 0}])
def test_what_users_refer_to_is_never_dropped(run_with_old_steps: Run, owner: User, train: dict[str, Any]) -> None:
    def get_sample(step: int, group: float) -> Sample:
        return Sample.objects.filter(step__step=step, step__split="train", score=group).first()  # type: ignore[return-value]

    flagged, exhibit = get_sample(2, 3.0), get_sample(3, 4.0)
    builders.flag(flagged.pk, owner)
    finding = create_finding(run_with_old_steps.project, owner, title="Odd")
    add_sample_evidence(finding, exhibit, owner)
    add_query_evidence(finding, run_with_old_steps, owner, q="score:5", split="train", step=5)
    attempt = builders.attempt(run_with_old_steps)
    Pin.objects.create(project=run_with_old_steps.project, run=run_with_old_steps, attempt=attempt, step=4, user=owner)
    policy = update_and_apply_policy(run_with_old_steps.project, owner, **train)
    assert count_samples(run_with_old_steps)[4] == 32
    assert Sample.objects.filter(step__step=2, group=flagged.group).count() == PER_GROUP
    assert Sample.objects.filter(step__step=3, group=exhibit.group).count() == PER_GROUP
    assert Sample.objects.filter(step__step=5, score=5.0).count() == PER_GROUP
    assert count_samples(run_with_old_steps)[2] <= 2 * PER_GROUP
    kept = build_report(policy)["totals"]["kept"]
    assert kept["pinned"] == 32 and kept["flagged"] == 4 and kept["finding"] == 8 and kept["evaluation"] == 64
    check_files(run_with_old_steps)


def test_a_group_is_dropped_a_day_after_its_flag_was_withdrawn(run_with_old_steps: Run, owner: User) -> None:
    sample = Sample.objects.filter(step__step=2, step__split="train").first()
    assert sample
    flag = builders.flag(sample.pk, owner)
    policy = update_and_apply_policy(run_with_old_steps.project, owner, train="every", every=100)
    for hours, left in ((23, PER_GROUP), (25, 0)):
        Label.objects.filter(pk=flag.pk).update(withdrawn_at=timezone.now() - timedelta(hours=hours))
        RetentionPolicy.objects.update(finished_at=None)
        apply_policy(policy, None)
        assert count_samples(run_with_old_steps)[2] == left


def test_nothing_of_a_run_with_the_tag_keep_is_dropped(run_with_old_steps: Run, owner: User) -> None:
    Run.objects.filter(pk=run_with_old_steps.pk).update(tags=["keep"])
    update_and_apply_policy(run_with_old_steps.project, owner, max_age_days=1, raw_after_days=0)
    assert all(count == 32 for count in count_samples(run_with_old_steps).values())
    assert not Dump.objects.filter(raw_dropped_at__isnull=False)


def test_limits_of_age_and_count(run_with_old_steps: Run, owner: User) -> None:
    Step.objects.filter(step__gte=7).update(created_at=timezone.now() - timedelta(days=3))
    update_and_apply_policy(run_with_old_steps.project, owner, max_age_days=10)
    assert {step for step, count in count_samples(run_with_old_steps).items() if count} == {7, 8, 9, 10, 11, 12}
    update_and_apply_policy(run_with_old_steps.project, owner, max_age_days=None, max_steps=2)
    assert {step for step, count in count_samples(run_with_old_steps).items() if count} == {11, 12}
    assert count_samples(run_with_old_steps, "eval") == {4: 32, 8: 32}


def test_the_limit_of_steps_counts_what_a_page_shows_and_not_the_rows_of_attempts(project: Project) -> None:
    run = builders.run(project)
    for attempt, steps in (("first", range(1, 8)), ("resumed", range(5, 11))):
        for step in steps:
            write_step(run, step, attempt=attempt)
    kept = set(Step.objects.values_list("attempt__key", "step"))
    kept -= set(Step.objects.filter(pk__in=find_surplus_steps(8, project)).values_list("attempt__key", "step"))
    assert kept == {("first", step) for step in range(3, 8)} | {("resumed", step) for step in range(5, 11)}
    assert not find_surplus_steps(10, project), "also steps that the resumed attempt may not have reached"
    Step.objects.filter(step=10).update(superseded=True)
    assert not find_surplus_steps(9, project), "of a run below the limit nothing is over it"
    Step.objects.update(superseded=False)  # both attempts ran at the same time
    first = run.attempts.get(key="first")
    run.attempts.update(concurrent_with=first)
    left = Step.objects.exclude(pk__in=find_surplus_steps(4, project))
    assert set(left.values_list("attempt__key", "step")) == {
        ("first", 7), ("resumed", 7), ("resumed", 8), ("resumed", 9), ("resumed", 10)
    }  # fmt: skip


def test_the_oldest_steps_are_dropped_until_the_bytes_are_below_the_limit(run_with_old_steps: Run, owner: User) -> None:
    for step in Step.objects.filter(run=run_with_old_steps):
        Step.objects.filter(pk=step.pk).update(created_at=timezone.now() - timedelta(days=100 - step.step))
    policy = update_policy(run_with_old_steps.project, owner, {"max_bytes": 1})
    total = load_total(policy)
    policy = update_and_apply_policy(run_with_old_steps.project, owner, max_bytes=int(total * 0.6))
    left = {step for step, count in count_samples(run_with_old_steps).items() if count}
    assert left and left == set(range(min(left), 13)), "the newest stay"
    assert load_total(policy) <= total * 0.6
    assert load_total(policy) > total * 0.4, "no more than needed"
    RetentionPolicy.objects.update(finished_at=None)
    assert apply_policy(policy, None) == 0


def load_total(policy: RetentionPolicy) -> float:
    return load_step_sizes(policy.project).total


def test_the_dry_run_says_what_the_pass_does_and_changes_nothing(run_with_old_steps: Run, owner: User) -> None:
    policy = update_policy(run_with_old_steps.project, owner, {"train": "sample", "groups": 2})
    before = count_samples(run_with_old_steps)
    report = build_report(policy)
    assert count_samples(run_with_old_steps) == before
    assert apply_policy(policy, None) == report["totals"]["drops"] > 0
    assert json.loads(json.dumps(report)) == report
    (row,) = report["runs"]
    assert len(row["steps"]) == 11 and row["bytes"]["bodies"] > 0 and row["bytes"]["raw"] > 0


def test_bytes_are_freed_also_in_shared_body_files(run_with_old_steps: Run, owner: User, data_dir: Path) -> None:
    compact_body_files(run_with_old_steps.pk, "train")
    before = sum(segment.bytes for segment in Segment.objects.filter(split="train"))
    update_and_apply_policy(run_with_old_steps.project, owner, train="every", every=4)
    segments = Segment.objects.filter(split="train")
    assert sum(segment.bytes for segment in segments) < before / 2
    assert sum(segment.rows for segment in segments) == 3 * 32
    check_files(run_with_old_steps)
    raw = list_stored("raw/")
    assert len(raw) == 3, "the evaluations have the same bytes as their training steps"


def test_dropped_steps_are_not_indexed_again(run_with_old_steps: Run, owner: User) -> None:
    update_and_apply_policy(run_with_old_steps.project, owner, train="sample", groups=2)
    before = {row.pk: row.ordinal for row in Sample.objects.all()}
    assert reindex_run(run_with_old_steps) == 3, "the last step and the evaluations"
    Dump.objects.update(state=Dump.State.RECEIVED)
    for dump in Dump.objects.all():
        index_dump(dump.pk)
    assert {row.pk: row.ordinal for row in Sample.objects.all()} == before
    assert set(Dump.objects.values_list("state", flat=True)) == {"indexed"}
    check_files(run_with_old_steps)


def test_a_sample_that_two_dumps_contain_keeps_both_as_sources(run: Run, owner: User) -> None:
    first = write_step(run, 1)
    second = index_file(run, lines(*(
        generation(f"question {group}", f"answer {number} of {group} in 1", float(group), 1, acc=True)
        for group in range(GROUPS) for number in range(PER_GROUP)
    )), 1, source="plugin")  # fmt: skip
    write_step(run, 2)
    age_steps(run)
    update_and_apply_policy(run.project, owner, train="sample", groups=2, extremes=0)
    rows = list(Sample.objects.filter(step__step=1))
    assert len(rows) == 2 * PER_GROUP
    for row, body in ((row, load_bodies([row])[row.pk]) for row in rows):
        assert {dump.pk for dump in body.source_dumps} == {first.pk, second.pk}
        assert body.score == row.score and body.response.endswith("in 1")


def test_samples_that_arrive_after_all_were_dropped_are_counted_and_dropped_too(
    run_with_old_steps: Run, owner: User
) -> None:
    policy = update_and_apply_policy(run_with_old_steps.project, owner, train="every", every=5)
    late = [generation("late", f"answer {number} in 1", 1.0, 1) for number in range(20)]
    index_file(run_with_old_steps, lines(*late), 1, source="late.jsonl")
    age_steps(run_with_old_steps)
    step = Step.objects.get(run=run_with_old_steps, step=1)
    assert (step.samples, step.dropped, count_samples(run_with_old_steps)[1], step.score_mean) == (52, 32, 20, 3.5)
    assert build_report(policy)["totals"]["drops"] == apply_policy(policy, None) == 20
    step.refresh_from_db()
    assert (step.samples, step.dropped, count_samples(run_with_old_steps)[1]) == (52, 52, 0)


def test_a_damaged_body_without_raw_bytes_stops_no_other_step(run_with_old_steps: Run, owner: User) -> None:
    dump = Dump.objects.get(step=2, split="train")
    Dump.objects.filter(pk=dump.pk).update(raw_dropped_at=timezone.now())
    assert dump.segment
    body_path(dump.segment.path).write_bytes(b"damaged")
    update_and_apply_policy(run_with_old_steps.project, owner, train="sample", groups=2)
    assert count_samples(run_with_old_steps)[2] == 32 and count_samples(run_with_old_steps)[3] < 32


def test_a_policy_that_fails_stops_no_other_project(run: Run, owner: User, monkeypatch: pytest.MonkeyPatch) -> None:
    for project in (run.project, builders.project("code")):
        update_policy(project, owner, {"max_age_days": 1})
    RetentionPolicy.objects.update(finished_at=None)
    applied: list[Project] = []

    def fail_first(policy: RetentionPolicy, max_seconds: float) -> int:
        applied.append(policy.project)
        if len(applied) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return 3

    monkeypatch.setattr(passes, "apply_policy", fail_first)
    assert apply_due_policies() == 3 and len(applied) == 2


def test_a_damaged_body_keeps_its_raw_bytes_and_samples(run_with_old_steps: Run, owner: User) -> None:
    dump = Dump.objects.get(step=2, split="train")
    other = Dump.objects.get(step=3, split="train")
    assert dump.segment and other.segment
    body_path(dump.segment.path).write_bytes(body_path(other.segment.path).read_bytes())
    policy = update_and_apply_policy(run_with_old_steps.project, owner, train="sample", groups=2)
    assert count_samples(run_with_old_steps)[2] == 32 and count_samples(run_with_old_steps)[3] < 32
    dump.refresh_from_db()
    assert dump.raw_dropped_at is None and dump.raw_kept_at
    assert build_report(policy)["totals"]["kept"]["not-verified"] == 32


def test_a_pass_loads_no_configuration_and_its_time_begins_after_the_limits(
    run_with_old_steps: Run, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = update_policy(run_with_old_steps.project, owner, {"train": "every", "every": 2, "after_days": 1})
    find_limits = passes.find_limits

    seconds = [0.0]

    def find_limits_slowly(*args: Any) -> Any:
        seconds[0] += 10
        return find_limits(*args)

    monkeypatch.setattr(passes, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(passes, "find_limits", find_limits_slowly)
    monkeypatch.setattr(passes, "drop_step_samples", lambda *_: 0)
    with CaptureQueriesContext(connection) as queries:
        apply_policy(policy, 1)
        build_report(policy)
    policy.refresh_from_db()
    assert policy.cursor == 0 and policy.finished_at, "all steps were checked"
    step_queries = [query["sql"] for query in queries if 'FROM "rollouts_step"' in query["sql"]]
    assert step_queries and not any('"rollouts_run"."config"' in sql for sql in step_queries)
