"""Findings store a copy of what they show, which later changes of the run do not affect."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rollouts.errors import InvalidInputError, NotFoundError, OutdatedError
from rollouts.findings import findings, serialize_evidence, snapshots
from rollouts.flags import bulk
from rollouts.indexing.indexer import reindex_run
from rollouts.maintenance import sweep
from rollouts.metrics import series
from rollouts.models import AuditEntry, EvidenceItem, Finding, Project, Run, Sample
from rollouts.runs import actions
from rollouts.samples import bodies
from rollouts.samples.record import MetricPoint
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders

LOOP = "Wait, let me check.\r\nWait, let me check.\r\n\u200bWait,\x00 let me check.\n#### 4"


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    rows = [generation(f"ask {n}", f"answer {n}", n / 4, gts=str(n)) for n in range(4)]
    index_file(run, lines(generation("2+2?", LOOP, -0.5), *rows))
    return run


@pytest.fixture
def finding(project: Project, mate: User) -> Finding:
    return findings.create_finding(project, mate, title="Loops  before the answer")


def get_sample(run: Run, ordinal: int = 0) -> Sample:
    return Sample.objects.select_related("step__run", "step__attempt", "dump").get(step__run=run, ordinal=ordinal)


def find_quote(shown: Sample, text: str, near: int = 0) -> snapshots.Quote:
    return snapshots.find_quote(bodies.load_body(shown), text, near)


def test_an_update_of_a_finding_needs_its_current_version(finding: Finding, owner: User) -> None:
    assert (finding.title, finding.version) == ("Loops before the answer", 1)
    changed = findings.update_finding(finding, note="**mostly** at step 3", version=1)
    assert (changed.title, changed.note, changed.version) == ("Loops before the answer", "**mostly** at step 3", 2)
    assert findings.update_finding(finding, note="**mostly** at step 3", version=2).version == 2, "the same again"
    with pytest.raises(OutdatedError, match="another user changed this finding"):
        findings.update_finding(finding, title="Mine", version=1)


@pytest.mark.parametrize("wrong", [{"title": ""}, {"title": " "}, {"title": "x" * 201}, {"title": 7}, {"note": "\x00"}])
def test_an_invalid_finding_is_refused(project: Project, mate: User, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        findings.create_finding(project, mate, **{"title": "fine", **wrong})
    assert not Finding.objects.exists()


def test_evidence_of_a_sample_has_its_texts_score_flags_and_quote(run: Run, finding: Finding, mate: User) -> None:
    shown = get_sample(run)
    builders.flag(shown.pk, mate, reason="repetition")
    findings.add_sample_evidence(finding, shown, mate, quotes=[find_quote(shown, "#### 4")], words="see the end")
    snapshot = finding.exhibits.get().shown
    assert (snapshot["response"], snapshot["prompt"], snapshot["score"], snapshot["step"]) == (LOOP, "2+2?", -0.5, 1)
    assert snapshot["run"] == {"uid": run.uid, "name": "grpo"}
    assert [(flag["user"], flag["reason"]) for flag in snapshot["flags"]] == [("mina", "repetition")]
    start = LOOP.index("#### 4")
    assert snapshot["quotes"] == [{"field": "response", "start": start, "end": start + 6, "text": "#### 4"}]


def test_evidence_stays_the_same_after_new_data_a_reindex_and_the_deletion_of_the_run(
    run: Run, finding: Finding, mate: User, owner: User
) -> None:
    shown = get_sample(run)
    findings.add_sample_evidence(finding, shown, mate, quotes=[find_quote(shown, "Wait")])
    findings.add_query_evidence(finding, run, mate, split="train", step=1, q="score<0.3")
    before = list(finding.exhibits.values_list("held", flat=True))
    bulk.flag_samples(run, [shown.pk], mate)
    index_file(run, lines(generation("other", "rows", 0.1)))
    reindex_run(run)
    assert list(finding.exhibits.values_list("held", flat=True)) == before
    actions.move_run_to_trash(run, owner)
    Run.objects.update(deleted_at=timezone.now() - timedelta(days=8))
    assert sweep.empty_trash() == 1
    assert list(finding.exhibits.values_list("held", "run")) == [(held, None) for held in before]


def test_a_sample_that_is_added_again_gets_more_quotes_and_stays_one_item(
    run: Run, finding: Finding, mate: User
) -> None:
    shown = get_sample(run)
    for message in ("#### 4", "2+2?", "#### 4"):
        findings.add_sample_evidence(finding, shown, mate, quotes=[find_quote(shown, message)], words="why")
    item = finding.exhibits.get()
    assert [(result["field"], result["text"]) for result in item.shown["quotes"]] == [
        ("response", "#### 4"),
        ("prompt", "2+2?"),
    ]
    assert item.words == "why"


def test_a_selection_is_found_at_its_place_although_the_browser_changed_white_space(run: Run) -> None:
    shown = get_sample(run)
    line = "Wait, let me check."
    starts = [LOOP.index(line), LOOP.index(line, 5)]
    assert [find_quote(shown, line, near).start for near in (0, 18)] == starts
    assert find_quote(shown, "check.\n\nWait, let", 30).text == "check.\r\n\u200bWait,\x00 let"


def test_a_quote_that_is_not_in_the_sample_is_refused(run: Run) -> None:
    for message in ("never written", " \n", ""):
        with pytest.raises(InvalidInputError, match="The selected text is not in the recorded sample"):
            find_quote(get_sample(run), message)


def test_a_range_is_quoted_exactly_and_refused_outside_the_text(run: Run) -> None:
    body = bodies.load_body(get_sample(run))
    assert snapshots.build_quote(body, "prompt", 1, 3).text == "+2"
    for wrong in (("prompt", 0, 5), ("prompt", 2, 2), ("prompt", -1, 2), ("reward", 0, 1)):
        with pytest.raises(InvalidInputError):
            snapshots.build_quote(body, *wrong)


def test_a_very_long_text_is_stored_up_to_a_limit_and_can_be_quoted_beyond_it(
    run: Run, finding: Finding, mate: User
) -> None:
    long = "x" * snapshots.MAX_SNAPSHOT_CHARS + " the end"
    index_file(run, lines(generation("long", long)), step=2)
    shown = Sample.objects.select_related("step__run", "step__attempt").get(step__step=2)
    findings.add_sample_evidence(finding, shown, mate, quotes=[find_quote(shown, "the end")])
    snapshot = EvidenceItem.objects.get().shown
    assert (len(snapshot["response"]), snapshot["lengths"]["response"]) == (snapshots.MAX_SNAPSHOT_CHARS, len(long))
    assert snapshot["quotes"][0]["text"] == "the end"


def test_evidence_of_a_query_has_its_counts_its_scores_and_its_first_rows(
    run: Run, finding: Finding, mate: User
) -> None:
    for _ in range(2):
        findings.add_query_evidence(finding, run, mate, split="train", step=1, q="score>=0.25", ordering="-score")
    snapshot = finding.exhibits.get().shown
    assert (snapshot["total"], snapshot["of"]) == (3, 5)
    assert snapshot["scores"] == {"mean": 0.5, "low": 0.25, "high": 0.75}
    assert [row["score"] for row in snapshot["rows"]] == [0.75, 0.5, 0.25]
    with pytest.raises(InvalidInputError):
        findings.add_query_evidence(finding, run, mate, q="score<")


def test_filter_chips_of_many_steps_count_the_newest_ones_with_a_note(
    run: Run, finding: Finding, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To count a million samples takes seconds; the total and the scores are those of all steps."""
    index_file(run, lines(generation("ask", "worse", -1.0), generation("ask", "better", 1.0)), step=2)
    monkeypatch.setattr(snapshots, "MAX_COUNTED_SAMPLES", 3)
    findings.add_query_evidence(finding, run, mate, split="train", q="", ordering="-step")
    snapshot = finding.exhibits.get().shown
    assert (snapshot["total"], snapshot["scores"]["high"]) == (7, 1.0)
    assert snapshot["counts"]["score<=0"] == 1
    assert snapshot["notes"] == ["The filter chips count the newest 1 of 2 steps."]
    assert [row["step"] for row in snapshot["rows"]] == [2, 2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("q", "ordering", "is_hidden"),
    [
        ("score>0.5", "-score", False),
        ("score.v2>0.5", "score", True),
        ("disagrees:score.v2", "score", True),
        ("", "-rescore:score.v2", True),
    ],
)
def test_queries_with_rescores_are_hidden_from_a_reviewer_of_a_blind_queue(
    q: str, ordering: str, is_hidden: bool
) -> None:
    snapshot = {"run": {"uid": "u", "name": "grpo"}, "q": q, "ordering": ordering, "total": 3, "counts": {}}
    row = EvidenceItem(kind=EvidenceItem.Kind.QUERY, held=json.dumps(snapshot))
    shown = serialize_evidence(row, is_blind=True)
    assert (shown.get("hidden", False), "total" in shown) == (is_hidden, not is_hidden)
    assert serialize_evidence(row, is_blind=False)["total"] == 3


def test_evidence_of_a_chart_has_the_points_of_each_run(run: Run, finding: Finding, mate: User) -> None:
    other = builders.run(run.project, "gspo")
    for shown, scale in ((run, 1.0), (other, 2.0)):
        points = [MetricPoint(step, {"score/mean": step * scale, "loss": None}) for step in range(3)]
        series.append_points(shown, builders.attempt(shown), points)
    findings.add_chart_evidence(finding, [run, other], ["score/mean"], mate)
    curves = finding.exhibits.get().shown["curves"]
    assert [(curve["run"]["name"], curve["steps"], curve["values"]) for curve in curves] == [
        ("grpo", [0, 1, 2], [0.0, 1.0, 2.0]),
        ("gspo", [0, 1, 2], [0.0, 2.0, 4.0]),
    ]
    with pytest.raises(NotFoundError, match="grpo has no metric called lossy"):
        findings.add_chart_evidence(finding, [run], ["lossy"], mate)


def test_evidence_items_are_moved_and_removed(run: Run, finding: Finding, mate: User) -> None:
    for at in range(3):
        findings.add_sample_evidence(finding, get_sample(run, at), mate)
    first, second, third = finding.exhibits.all()
    findings.move_evidence(third, -2)
    findings.move_evidence(first, 9)
    assert list(finding.exhibits.all()) == [third, second, first]
    findings.remove_evidence(second, mate)
    findings.remove_evidence(second, mate)
    assert list(finding.exhibits.all()) == [third, first]
    assert AuditEntry.objects.filter(verb="finding.take_out").count() == 1
    with pytest.raises(NotFoundError, match="This item was removed"):
        findings.move_evidence(second, 1)


def test_a_comment_that_another_user_changed_since_is_not_overwritten(run: Run, finding: Finding, mate: User) -> None:
    item = findings.add_sample_evidence(finding, get_sample(run), mate, words="one\r\ntwo")
    other = EvidenceItem.objects.get()
    findings.set_evidence_comment(item, "his", began="one\r\ntwo")
    with pytest.raises(OutdatedError, match="another user changed this comment"):
        findings.set_evidence_comment(other, "hers", began="one\r\ntwo")
    assert findings.set_evidence_comment(other, "his", began="one\r\ntwo").words == "his", "the same again"
    assert findings.set_evidence_comment(other, "hers").words == EvidenceItem.objects.get().words == "hers", "unasked"


def test_a_comment_on_a_removed_item_is_refused(run: Run, finding: Finding, mate: User) -> None:
    item = findings.add_sample_evidence(finding, get_sample(run), mate)
    findings.remove_evidence(EvidenceItem.objects.get(), mate)
    with pytest.raises(NotFoundError, match="This item was removed"):
        findings.set_evidence_comment(item, "late")


def test_a_comment_on_evidence_that_is_added_again_is_appended(run: Run, finding: Finding, mate: User) -> None:
    series.append_points(run, builders.attempt(run), [MetricPoint(1, {"loss": 1.0})])
    for words in ("why", "", "and this", "why", "this"):
        findings.add_query_evidence(finding, run, mate, words=words)
        findings.add_chart_evidence(finding, [run], ["loss"], mate, words=words)
        findings.add_sample_evidence(
            finding, get_sample(run), mate, quotes=[find_quote(get_sample(run), "#### 4")], words=words
        )
    assert [item.words for item in finding.exhibits.all()] == ["why\n\nand this\n\nthis"] * 3
    with pytest.raises(InvalidInputError, match="at most 50,000"):
        findings.add_query_evidence(finding, run, mate, words="x" * findings.MAX_NOTE_CHARS)


def test_a_removed_finding_accepts_no_evidence_until_it_is_restored(run: Run, finding: Finding, mate: User) -> None:
    findings.remove_finding(finding, mate)
    findings.remove_finding(finding, mate)
    assert not Finding.objects.active().exists()
    with pytest.raises(NotFoundError, match="This finding was removed"):
        findings.add_sample_evidence(finding, get_sample(run), mate)
    findings.restore_finding(finding, mate)
    findings.add_sample_evidence(finding, get_sample(run), mate)
    assert [entry.verb for entry in AuditEntry.objects.order_by("pk")] == ["finding.remove", "finding.restore"]


def test_the_number_of_evidence_items_of_a_finding_is_limited(
    run: Run, finding: Finding, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "MAX_EVIDENCE_ITEMS", 1)
    findings.add_sample_evidence(finding, get_sample(run), mate)
    with pytest.raises(InvalidInputError, match="at most 1 items. Start a new finding"):
        findings.add_sample_evidence(finding, get_sample(run, 1), mate)


def test_every_change_notifies_open_pages(
    run: Run, finding: Finding, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifications: list[str] = []
    monkeypatch.setattr(findings, "notify_topics", lambda *topics: notifications.extend(topics))
    item = findings.add_sample_evidence(finding, get_sample(run), mate)
    findings.set_evidence_comment(item, "look")
    findings.move_evidence(item, 1)
    findings.remove_evidence(item, mate)
    assert notifications == ["findings"] * 4
