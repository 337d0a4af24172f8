"""Re-scores: what is stored, what is kept when a run is indexed again, and how queries use them."""

from __future__ import annotations

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rollouts import rescores
from rollouts.errors import ConflictError, InvalidInputError
from rollouts.indexing import index_dump, reindex_run
from rollouts.metrics.sample_curves import list_sample_curve_names
from rollouts.models import AuditEntry, Project, Rescore, RescoreBlock, Run, Sample, Step
from rollouts.query import complete_query, find_samples
from rollouts.rescores.comparison import compare_rescore, compute_correlation
from rollouts.rescores.results import add_parts, save_step_results
from rollouts.samples import RescoreResult, load_results, rescore_blocks
from tests.rollouts.support.query_rows import push
from tests.support import builders

SCORES = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
# The fifth sample failed, the second was correct, the third is correct now.
NEW_SCORES = [1.0, 0.0, 0.5, 0.0, None, 0.0]


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    for step in (1, 2):
        rows = [
            {"prompt": f"p{n}", "response": f"r{n} of {step}", "score": score, "group": str(n), "acc": score,
             "data_source": "gsm8k" if n % 2 else "math"}
            for n, score in enumerate(SCORES)
        ]  # fmt: skip
        push(run, rows, step=step)
    return run


def start_rescore(run: Run, user: User, **changes: object) -> Rescore:
    fields = {"name": "score.v2", "kind": "function", "source": "my.py:f", "digest": "1", **changes}
    return rescores.create_rescore(run, user, **fields)[0]


def save_results_of_step(rescore: Rescore, step: int = 1) -> list[str]:
    samples = list(Sample.objects.filter(step__step=step).order_by("ordinal").values_list("pk", flat=True))
    results = {
        sample: RescoreResult(
            value, "" if value is not None else "boom", {"format": 0.25, "pred": "7"} if value else {}
        )
        for sample, value in zip(samples, NEW_SCORES, strict=True)
    }
    assert rescores.save_results(rescore, results) == len(samples)
    return samples


def find_ordinals(run: Run, q: str, ordering: str = "order") -> list[int]:
    return [sample.ordinal for sample in find_samples(run, step=1, q=q, ordering=ordering).samples]


def test_queries_filter_compare_sort_and_complete_a_rescore(run: Run, owner: User) -> None:
    save_results_of_step(start_rescore(run, owner))
    assert find_ordinals(run, "score.v2=1") == [0] and find_ordinals(run, "score.v2<0.75") == [1, 2, 3, 5]
    assert find_ordinals(run, "score.v2!=score") == [1, 2] and find_ordinals(run, "score.v2>score") == [2]
    assert find_ordinals(run, "-score.v2=0") == [0, 2, 4], "a sample without a number is not equal to it"
    assert find_ordinals(run, "disagrees:score.v2") == [1, 2] and find_ordinals(run, "score.v2.format=0.25 r2") == [2]
    assert find_ordinals(run, "acc=1 -score.v2>0") == [1, 4] and find_ordinals(run, "score.v2>0 or r3") == [0, 2, 3]
    assert (
        find_ordinals(run, "", "-rescore:score.v2")[:2] == [0, 2]
        and find_ordinals(run, "", "rescore:score.v2")[-1] == 4
    )
    choices = {choice.text for choice in complete_query(run, "score.v", step=1).choices}
    assert choices == {"score.v2", "score.v2.format"}
    counts = {choice.text: choice.count for choice in complete_query(run, "score.v2=", step=1).choices}
    assert counts == {"score.v2=0": 3, "score.v2=0.5": 1, "score.v2=1": 1}
    assert [choice.text for choice in complete_query(run, "disagrees:", step=1).choices] == ["disagrees:score.v2"]
    for q in ("score.v2<maybe.not", "disagrees:v3", "score.v3=1", "acc<score"):
        with pytest.raises(InvalidInputError):
            list(find_samples(run, q=q).samples)
    with pytest.raises(InvalidInputError):
        find_samples(run, ordering="rescore:v3")


def test_results_are_kept_when_the_run_is_indexed_again(run: Run, owner: User) -> None:
    rescore = start_rescore(run, owner)
    samples = save_results_of_step(rescore)
    save_results_of_step(rescore, step=2)
    before = dict(Sample.objects.values_list("pk", "rescores"))
    assert before[samples[0]] == {rescore.key: 1.0, f"{rescore.key}.format": 0.25} and before[samples[4]] in (None, {})
    reindex_run(run)
    for dump in run.dumps.all():
        index_dump(dump.pk)
    assert {pk: row or None for pk, row in Sample.objects.values_list("pk", "rescores")} == {
        pk: row or None for pk, row in before.items()
    }
    assert Step.objects.get(step=1).rescores[rescore.key] == pytest.approx(0.3)
    run.refresh_from_db()
    assert {"samples/rescores/score.v2", "samples/rescores/score.v2.format"} <= list_sample_curve_names(run)


def test_a_name_is_used_by_one_version_and_is_no_field_of_the_trainer(run: Run, owner: User) -> None:
    for name in ("score", "acc", "is", "label.x", "a b", "data_source", "é", ""):
        with pytest.raises((InvalidInputError, ConflictError)):
            start_rescore(run, owner, name=name)
    rescore = start_rescore(run, owner)
    save_results_of_step(rescore)
    assert start_rescore(run, owner).pk == rescore.pk
    with pytest.raises(ConflictError, match="another version"):
        start_rescore(run, owner, digest="2")
    other = builders.member(run.project, "ann", "annotator")
    with pytest.raises(ConflictError, match="a re-score of"):
        start_rescore(run, other, digest="2", replace=True)
    fresh = start_rescore(run, owner, digest="2", replace=True)
    assert fresh.pk != rescore.pk and find_ordinals(run, "score.v2>=0") == [] and not RescoreBlock.objects.exists()
    assert set(AuditEntry.objects.filter(verb__startswith="rescore.").values_list("verb", flat=True)) == {
        "rescore.create",
        "rescore.delete",
    }


def test_only_its_author_and_maintainers_change_the_threshold_of_a_rescore(run: Run, owner: User) -> None:
    ann = builders.member(run.project, "ann", "annotator")
    rescore = start_rescore(run, ann, threshold=0.5)
    bob = builders.member(run.project, "bob", "annotator")
    for same in (None, 0.5):
        assert start_rescore(run, bob, threshold=same).pk == rescore.pk, "anybody may continue it"
    with pytest.raises(ConflictError, match="a re-score of ann"):
        start_rescore(run, bob, threshold=0.9)
    rescore.refresh_from_db()
    assert rescore.threshold == 0.5
    for user, value in ((ann, 0.6), (owner, 0.7)):
        assert start_rescore(run, user, threshold=value).threshold == value
    entries = AuditEntry.objects.filter(verb="rescore.update").order_by("pk")
    assert [(entry.user, entry.detail["threshold"]) for entry in entries] == [(ann, 0.6), (owner, 0.7)]


def test_pending_samples_come_in_pages_without_those_that_are_done(run: Run, owner: User) -> None:
    rescore = start_rescore(run, owner)
    scope = {"run": run}
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = rescores.find_pending_samples(rescore, scope, "score>=0", limit=5, cursor=cursor)
        assert len(page.samples) <= 5
        seen += [sample["id"] for sample in page.samples]
        cursor = page.cursor
    assert len(seen) == len(set(seen)) == 12
    save_results_of_step(rescore)
    page = rescores.find_pending_samples(rescore, scope, "", limit=50)
    assert (len(page.samples), page.done, page.failed, page.cursor) == (6, 5, 1, None)
    again = rescores.find_pending_samples(rescore, scope, "", limit=50, retry=True)
    assert [sample["response"] for sample in again.samples if sample["step"] == 1] == ["r4 of 1"]


def test_samples_of_steps_that_lack_a_key_are_pending_too(run: Run, owner: User) -> None:
    push(run, [{"prompt": "p", "response": "without acc", "score": 0.0}], step=3)
    rescore = start_rescore(run, owner)
    page = rescores.find_pending_samples(rescore, {"run": run}, "-acc=1", limit=50)
    assert len(page.samples) == 7 and page.samples[-1]["response"] == "without acc"
    with pytest.raises(InvalidInputError, match="nowhere"):
        rescores.find_pending_samples(rescore, {"run": run}, "-nowhere=1", limit=50)


def test_a_result_is_counted_on_only_one_page(run: Run, owner: User) -> None:
    rescore = start_rescore(run, owner)
    samples = list(Sample.objects.filter(step__step=1).order_by("ordinal").values_list("pk", flat=True))
    assert rescores.save_results(rescore, {samples[at]: RescoreResult(1.0) for at in (1, 3, 5)}) == 3
    done = []
    cursor: str | None = ""
    while cursor is not None:
        page = rescores.find_pending_samples(rescore, {"run": run, "step": 1}, "", limit=1, cursor=cursor)
        done.append(page.done)
        cursor = page.cursor
    assert sum(done) == 3, done


def test_results_of_samples_that_were_removed_meanwhile_are_not_stored(run: Run, owner: User) -> None:
    rescore, step = start_rescore(run, owner), Step.objects.get(step=1)
    gone, kept = Sample.objects.filter(step=step).order_by("ordinal").values_list("pk", flat=True)[:2]
    Sample.objects.filter(pk=gone).delete()
    results = {sample: RescoreResult(1.0, rationale="quotes the prompt") for sample in (gone, kept)}
    assert save_step_results(rescore, step.pk, results) == 1
    assert set(load_results(step, rescore)) == {kept}
    assert save_step_results(rescore, step.pk, {gone: results[gone]}) == 0


def test_a_rescore_is_deleted_once_with_all_results_that_it_has_then(run: Run, owner: User) -> None:
    rescore = start_rescore(run, owner)
    save_results_of_step(rescore)
    for _try in range(2):
        rescores.delete_rescore(rescore, owner)
    assert AuditEntry.objects.get(verb="rescore.delete").detail["results"] == 5
    assert not RescoreBlock.objects.exists()


def test_a_result_is_replaced_and_blocks_do_not_grow_with_each_request(
    run: Run, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescore_blocks, "MAX_BLOCK_RESULTS", 4)
    rescore = start_rescore(run, owner)
    samples = list(Sample.objects.filter(step__step=1).order_by("ordinal").values_list("pk", flat=True))
    for sample in samples:
        rescores.save_results(rescore, {sample: RescoreResult(None, "timeout")})
    assert sorted(RescoreBlock.objects.values_list("count", flat=True)) == [2, 4]
    rescores.save_results(rescore, {sample: RescoreResult(1.0, rationale="fine") for sample in [*samples, "unknown"]})
    rescore.refresh_from_db()
    assert (rescore.results, rescore.errors) == (6, 0) and RescoreBlock.objects.count() == 2
    assert rescores.load_sample_results(Sample.objects.get(pk=samples[0]))[0][1].rationale == "fine"


def test_the_part_acc_decides_about_correctness_wherever_it_is_listed(run: Run, owner: User) -> None:
    rescore, first = start_rescore(run, owner), Sample.objects.get(step__step=1, ordinal=0)
    parts = {f"part-{n}": 0.5 for n in range(12)} | {"acc": 0}
    results = rescores.parse_results([{"sample": first.pk, "value": 0.1, "parts": parts}])
    rescores.save_results(rescore, results)
    rescore.refresh_from_db()
    assert rescore.verdict == (f"{rescore.key}.acc", 0.5) and len(rescore.parts) == 8
    assert find_ordinals(run, "disagrees:score.v2") == [0]
    known = [f"part-{n}" for n in range(8)]
    assert add_parts(known, {first.pk: RescoreResult(0.1, parts={"acc": 0.0})}) == [*known[:7], "acc"]
    assert add_parts(["acc", *known], {}) == ["acc", *known[:7]]


@pytest.mark.parametrize("number", [10**400, float("nan"), float("inf")], ids=["huge", "nan", "inf"])
def test_a_number_that_cannot_be_stored_is_no_result(number: float) -> None:
    (part,) = rescores.parse_results([{"sample": "a", "value": 1, "parts": {"huge": number}}]).values()
    assert part.parts == {}
    with pytest.raises(InvalidInputError):
        rescores.parse_results([{"sample": "a", "value": number}])


def test_a_rounding_error_is_no_correlation() -> None:
    sums = {"count": 3, "old": 0.3, "old_squares": 0.05, "new": 3, "new_squares": 5, "products": 0.3 + 4e-17}
    assert compute_correlation(sums) == 0


def test_the_comparison_has_each_data_source(run: Run, owner: User) -> None:
    rescore = start_rescore(run, owner)
    save_results_of_step(rescore)
    result = rescores.compare_rescore(rescore.pk, rescore.created_at, run.version)
    total = result.total
    assert (total.count, total.changed, total.judged, total.agreed, total.gained, total.lost) == (5, 2, 5, 3, 1, 1)
    assert (total.old_mean, total.new_mean) == (pytest.approx(0.4), pytest.approx(0.3)) and result.missing == 1
    assert {source.source: source.count for source in result.sources} == {"gsm8k": 3, "math": 2}
    assert [sample.ordinal for sample in result.examples] == [1, 2]
    numbers = SCORES[:4] + SCORES[5:], [value for value in NEW_SCORES if value is not None]
    assert total.correlation == pytest.approx(float(np.corrcoef(*numbers)[0, 1]))


def test_the_mean_of_a_thinned_step_is_that_of_all_results_that_arrived(run: Run, owner: User) -> None:
    """The results arrive in several requests. Only a re-score from before the drop keeps its mean."""
    before = start_rescore(run, owner, name="before")
    save_results_of_step(before)
    step = Step.objects.get(step=1)
    mean = step.rescores[before.key]
    Step.objects.filter(pk=step.pk).update(dropped=2, dropped_at=timezone.now())
    after = start_rescore(run, owner, name="after")
    samples = list(Sample.objects.filter(step=step).order_by("ordinal").values_list("pk", flat=True))
    for rescore in (before, after):
        for at, value in enumerate((1.0, 0.0, 0.0, 0.0)):
            rescores.save_results(rescore, {samples[at]: RescoreResult(value)})
    step.refresh_from_db()
    assert step.rescores[before.key] == mean and step.rescores[after.key] == 0.25


def test_a_large_score_that_was_logged_as_float32_is_unchanged(project: Project, owner: User) -> None:
    run = builders.run(project)
    scores = (1234.1, -56.7, 3.0)
    push(run, [{"response": str(score), "score": float(np.float32(score))} for score in scores])
    rescore = start_rescore(run, owner)
    samples = list(Sample.objects.order_by("ordinal").values_list("pk", flat=True))
    values = zip(samples, (1234.1, -56.7, 3.1), strict=True)
    rescores.save_results(rescore, {sample: RescoreResult(value) for sample, value in values})
    assert find_ordinals(run, "score.v2=score") == [0, 1] and find_ordinals(run, "score.v2>score") == find_ordinals(
        run, "score.v2!=score"
    ) == [2]
    rescore.run.refresh_from_db()
    compared = compare_rescore(rescore.pk, rescore.created_at, rescore.run.version)
    assert compared.total.changed == 1 and [row.pk for row in compared.examples] == samples[2:]
