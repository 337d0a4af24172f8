"""Findings keep what they show; nothing that happens to the run later changes it."""

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


def sample(run: Run, ordinal: int = 0) -> Sample:
    return Sample.objects.select_related("step__run", "step__attempt", "dump").get(step__run=run, ordinal=ordinal)


def quote(shown: Sample, text: str, near: int = 0) -> snapshots.Quote:
    return snapshots.find_quote(bodies.load_body(shown), text, near)


def test_a_finding_has_a_title_a_note_and_a_version_that_guards_both(finding: Finding, owner: User) -> None:
    assert (finding.title, finding.version) == ("Loops before the answer", 1)
    changed = findings.update_finding(finding, note="**mostly** at step 3", version=1)
    assert (changed.title, changed.note, changed.version) == ("Loops before the answer", "**mostly** at step 3", 2)
    assert findings.update_finding(finding, note="**mostly** at step 3", version=2).version == 2, "the same again"
    with pytest.raises(OutdatedError, match="another user changed this finding"):
        findings.update_finding(finding, title="Mine", version=1)


@pytest.mark.parametrize("wrong", [{"title": ""}, {"title": " "}, {"title": "x" * 201}, {"title": 7}, {"note": "\x00"}])
def test_what_a_finding_cannot_hold_is_refused(project: Project, mate: User, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        findings.create_finding(project, mate, **{"title": "fine", **wrong})
    assert not Finding.objects.exists()


def test_a_shown_sample_holds_its_texts_score_flags_and_quote(run: Run, finding: Finding, mate: User) -> None:
    shown = sample(run)
    builders.flag(shown.pk, mate, reason="repetition")
    findings.add_sample_evidence(finding, shown, mate, quotes=[quote(shown, "#### 4")], words="see the end")
    rendered = finding.exhibits.get().shown
    assert (rendered["response"], rendered["prompt"], rendered["score"], rendered["step"]) == (LOOP, "2+2?", -0.5, 1)
    assert rendered["run"] == {"uid": run.uid, "name": "grpo"}
    assert [(flag["user"], flag["reason"]) for flag in rendered["flags"]] == [("mina", "repetition")]
    start = LOOP.index("#### 4")
    assert rendered["quotes"] == [{"field": "response", "start": start, "end": start + 6, "text": "#### 4"}]


def test_later_data_a_reindex_and_the_end_of_the_run_change_nothing(
    run: Run, finding: Finding, mate: User, owner: User
) -> None:
    shown = sample(run)
    findings.add_sample_evidence(finding, shown, mate, quotes=[quote(shown, "Wait")])
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


def test_a_sample_that_is_shown_again_gets_further_quotes_and_stays_one_exhibit(
    run: Run, finding: Finding, mate: User
) -> None:
    shown = sample(run)
    for message in ("#### 4", "2+2?", "#### 4"):
        findings.add_sample_evidence(finding, shown, mate, quotes=[quote(shown, message)], words="why")
    exhibit = finding.exhibits.get()
    assert [(result["field"], result["text"]) for result in exhibit.shown["quotes"]] == [
        ("response", "#### 4"),
        ("prompt", "2+2?"),
    ]
    assert exhibit.words == "why"


def test_a_selection_is_found_where_it_was_made_whatever_the_browser_did_to_white_space(run: Run) -> None:
    shown = sample(run)
    line = "Wait, let me check."
    starts = [LOOP.index(line), LOOP.index(line, 5)]
    assert [quote(shown, line, near).start for near in (0, 18)] == starts
    assert quote(shown, "check.\n\nWait, let", 30).text == "check.\r\n\u200bWait,\x00 let"


def test_a_text_that_the_sample_does_not_have_is_no_quote(run: Run) -> None:
    for message in ("never written", " \n", ""):
        with pytest.raises(InvalidInputError, match="The selected text is not in the recorded sample"):
            quote(sample(run), message)


def test_a_range_is_quoted_as_it_stands_and_refused_outside_the_text(run: Run) -> None:
    body = bodies.load_body(sample(run))
    assert snapshots.build_quote(body, "prompt", 1, 3).text == "+2"
    for wrong in (("prompt", 0, 5), ("prompt", 2, 2), ("prompt", -1, 2), ("reward", 0, 1)):
        with pytest.raises(InvalidInputError):
            snapshots.build_quote(body, *wrong)


def test_a_very_long_text_is_held_up_to_a_bound_that_is_said_and_quoted_beyond_it(
    run: Run, finding: Finding, mate: User
) -> None:
    long = "x" * snapshots.MAX_SNAPSHOT_CHARS + " the end"
    index_file(run, lines(generation("long", long)), step=2)
    shown = Sample.objects.select_related("step__run", "step__attempt").get(step__step=2)
    findings.add_sample_evidence(finding, shown, mate, quotes=[quote(shown, "the end")])
    rendered = EvidenceItem.objects.get().shown
    assert (len(rendered["response"]), rendered["lengths"]["response"]) == (snapshots.MAX_SNAPSHOT_CHARS, len(long))
    assert rendered["quotes"][0]["text"] == "the end"


def test_a_shown_query_holds_its_counts_its_figures_and_its_first_rows(run: Run, finding: Finding, mate: User) -> None:
    for _ in range(2):
        findings.add_query_evidence(finding, run, mate, split="train", step=1, q="score>=0.25", ordering="-score")
    rendered = finding.exhibits.get().shown
    assert (rendered["total"], rendered["of"]) == (3, 5)
    assert rendered["scores"] == {"mean": 0.5, "low": 0.25, "high": 0.75}
    assert [row["score"] for row in rendered["rows"]] == [0.75, 0.5, 0.25]
    with pytest.raises(InvalidInputError):
        findings.add_query_evidence(finding, run, mate, q="score<")


def test_the_chips_of_many_steps_count_the_newest_and_say_so(
    run: Run, finding: Finding, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To count a million samples takes seconds; the total and the scores are those of all steps."""
    index_file(run, lines(generation("ask", "worse", -1.0), generation("ask", "better", 1.0)), step=2)
    monkeypatch.setattr(snapshots, "MAX_COUNTED_SAMPLES", 3)
    findings.add_query_evidence(finding, run, mate, split="train", q="", ordering="-step")
    rendered = finding.exhibits.get().shown
    assert (rendered["total"], rendered["scores"]["high"]) == (7, 1.0)
    assert rendered["counts"]["score<=0"] == 1
    assert rendered["notes"] == ["The filter chips count the newest 1 of 2 steps."]
    assert [row["step"] for row in rendered["rows"]] == [2, 2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("q", "ordering", "is_hidden"),
    [
        ("score>0.5", "-score", False),
        ("score.v2>0.5", "score", True),
        ("disagrees:score.v2", "score", True),
        ("", "-rescore:score.v2", True),
    ],
)
def test_what_rescores_say_is_hidden_from_a_reviewer_of_a_blind_queue(q: str, ordering: str, is_hidden: bool) -> None:
    snapshot = {"run": {"uid": "u", "name": "grpo"}, "q": q, "ordering": ordering, "total": 3, "counts": {}}
    row = EvidenceItem(kind=EvidenceItem.Kind.QUERY, held=json.dumps(snapshot))
    shown = serialize_evidence(row, is_blind=True)
    assert (shown.get("hidden", False), "total" in shown) == (is_hidden, not is_hidden)
    assert serialize_evidence(row, is_blind=False)["total"] == 3


def test_shown_charts_hold_points_of_the_runs_that_have_them(run: Run, finding: Finding, mate: User) -> None:
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


def test_exhibits_are_moved_and_taken_out(run: Run, finding: Finding, mate: User) -> None:
    for at in range(3):
        findings.add_sample_evidence(finding, sample(run, at), mate)
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


def test_words_that_somebody_else_changed_since_are_not_overwritten(run: Run, finding: Finding, mate: User) -> None:
    exhibit = findings.add_sample_evidence(finding, sample(run), mate, words="one\r\ntwo")
    other = EvidenceItem.objects.get()
    findings.set_evidence_comment(exhibit, "his", began="one\r\ntwo")
    with pytest.raises(OutdatedError, match="another user changed this comment"):
        findings.set_evidence_comment(other, "hers", began="one\r\ntwo")
    assert findings.set_evidence_comment(other, "his", began="one\r\ntwo").words == "his", "the same again"
    assert findings.set_evidence_comment(other, "hers").words == EvidenceItem.objects.get().words == "hers", "unasked"


def test_nothing_is_said_of_what_was_taken_out_meanwhile(run: Run, finding: Finding, mate: User) -> None:
    exhibit = findings.add_sample_evidence(finding, sample(run), mate)
    findings.remove_evidence(EvidenceItem.objects.get(), mate)
    with pytest.raises(NotFoundError, match="This item was removed"):
        findings.set_evidence_comment(exhibit, "late")


def test_further_words_on_what_is_shown_already_join_those_it_has(run: Run, finding: Finding, mate: User) -> None:
    series.append_points(run, builders.attempt(run), [MetricPoint(1, {"loss": 1.0})])
    for words in ("why", "", "and this", "why"):
        findings.add_query_evidence(finding, run, mate, words=words)
        findings.add_chart_evidence(finding, [run], ["loss"], mate, words=words)
        findings.add_sample_evidence(finding, sample(run), mate, quotes=[quote(sample(run), "#### 4")], words=words)
    assert [item.words for item in finding.exhibits.all()] == ["why\n\nand this"] * 3
    with pytest.raises(InvalidInputError, match="at most 50,000"):
        findings.add_query_evidence(finding, run, mate, words="x" * findings.MAX_NOTE_CHARS)


def test_a_removed_finding_takes_nothing_in_until_it_is_restored(run: Run, finding: Finding, mate: User) -> None:
    findings.remove_finding(finding, mate)
    findings.remove_finding(finding, mate)
    assert not Finding.objects.active().exists()
    with pytest.raises(NotFoundError, match="This finding was removed"):
        findings.add_sample_evidence(finding, sample(run), mate)
    findings.restore_finding(finding, mate)
    findings.add_sample_evidence(finding, sample(run), mate)
    assert [entry.verb for entry in AuditEntry.objects.order_by("pk")] == ["finding.remove", "finding.restore"]


def test_a_finding_holds_a_bounded_number_of_exhibits(
    run: Run, finding: Finding, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "MAX_EVIDENCE_ITEMS", 1)
    findings.add_sample_evidence(finding, sample(run), mate)
    with pytest.raises(InvalidInputError, match="at most 1 items. Start a new finding"):
        findings.add_sample_evidence(finding, sample(run, 1), mate)


def test_every_change_is_told_to_open_pages(
    run: Run, finding: Finding, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifications: list[str] = []
    monkeypatch.setattr(findings, "notify_topics", lambda *topics: notifications.extend(topics))
    exhibit = findings.add_sample_evidence(finding, sample(run), mate)
    findings.set_evidence_comment(exhibit, "look")
    findings.move_evidence(exhibit, 1)
    findings.remove_evidence(exhibit, mate)
    assert notifications == ["findings"] * 4
