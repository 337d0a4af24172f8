"""`POST labels/import/`: how samples are found, what is refused, whose labels may be imported, which answer wins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q
from django.test.utils import CaptureQueriesContext

from rollouts import queues
from rollouts.label_import import candidates
from rollouts.label_import.candidates import CandidateLoader, CandidateSample
from rollouts.labels import Answer, save_rubric, store_labels
from rollouts.models import Label, LabelChange, Project, Run, Sample
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.support.query_rows import push
from tests.support import builders
from tests.support.patching import patch_everywhere

pytestmark = pytest.mark.django_db
QUESTIONS = [
    {"key": "correct", "title": "Right?", "kind": "yes-no", "range": True},
    {"key": "quality", "title": "Quality", "kind": "rating"},
    *({"key": f"q{n}", "title": "Q", "kind": "yes-no"} for n in range(10)),
]
ROWS: list[dict[str, Any]] = [
    {"prompt": "p1", "response": "best", "group": "a", "index": 0},
    {"prompt": "p1", "response": "worst", "group": "a", "index": 1},
    {"prompt": [{"role": "user", "content": "p2"}], "response": "from messages"},
]
YES = {"name": "correct", "value": True}


@pytest.fixture
def run(project: Project, owner: User) -> Run:
    save_rubric(project, owner, QUESTIONS)
    run = builders.run(project, "grpo")
    for step in (1, 2):
        push(run, ROWS, step=step)
    push(run, ROWS[:1], step=1, split="eval")
    return run


def import_labels(user: User, rows: list[Any], **fields: Any) -> dict[str, Any]:
    response = ApiClient.with_token(user, "annotate")(
        "POST", "labels/import/", {"project": "math", "rows": rows} | fields
    )
    assert response.status_code == 200, response.content
    result: dict[str, Any] = response.json()
    return result


def get_sample(run: Run, tail: str, step: int = 1, split: str = "train") -> Sample:
    return Sample.objects.get(step__run=run, step__step=step, step__split=split, tail=tail)


def list_problems(result: dict[str, Any]) -> list[tuple[int, str, str]]:
    return [(row["row"], row["kind"], row["message"]) for row in result["problems"]]


def test_a_sample_is_found_by_id_place_or_text(run: Run, mate: User) -> None:
    best, worst = get_sample(run, "best"), get_sample(run, "worst", 2)
    position = {"run": "grpo", "split": "train", "step": 2, "group": "a"}
    rows = [
        {"sample": best.pk, **YES},
        {**position, "index": 1, "name": "quality", "value": 2, "score": 0.5},
        {"prompt": [{"role": "user", "content": "p2"}], "response": "from messages", "step": 1, **YES},
        {"prompt": "<|im_start|>user\np2<|im_end|>", "response": "from messages", "run": run.uid, "step": 2, **YES},
        # an unknown id, or the id of another sample: the place, or the text, decides
        {"sample": "a" * 52, **position, "index": 0, "name": "quality", "value": 5},
        {"sample": best.pk, **position, "index": 1, **YES},
    ]
    result = import_labels(mate, rows)
    assert result["labels"] == {"new": 6, "changed": 0, "unchanged": 0} and result["problems"] == []
    assert result["matched"] == {"id": 1, "place": 4, "text": 1} and result["unused_fields"] == ["score"]
    assert Label.objects.get(sample=worst.pk, name="correct").author == "mina"
    assert Label.objects.filter(sample=best.pk).count() == 1
    assert {row.step.step for row in Label.objects.filter(sample__in=Sample.objects.filter(tail="from messages"))} == {
        1,
        2,
    }


def test_only_samples_with_the_right_length_are_compared_if_many_have_the_prompt(
    run: Run, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_everywhere(monkeypatch, candidates, "MAX_CANDIDATES", 1)
    rows = [
        {"prompt": "p1", "response": "worst", "step": 2, **YES},
        {"prompt": "p1", "response": "best", "step": 2, **YES},
        {"prompt": "p1", "response": "best", **YES},
    ]
    result = import_labels(mate, rows)
    ((row, kind, message),) = list_problems(result)
    assert (row, kind) == (2, "ambiguous") and message.startswith("More than 1 samples match.")
    labelled = {get_sample(run, tail, 2).pk for tail in ("best", "worst")}
    assert set(Label.objects.values_list("sample", flat=True)) == labelled


@pytest.fixture
def loaded_tails(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tails of the samples that were loaded to find those of rows."""
    tails: list[str] = []
    load = CandidateLoader.load_candidates

    def load_and_note(self: CandidateLoader, condition: Q) -> list[CandidateSample]:
        found = load(self, condition)
        tails.extend(Sample.objects.filter(pk__in=[row.pk for row in found]).values_list("tail", flat=True))
        return found

    monkeypatch.setattr(CandidateLoader, "load_candidates", load_and_note)
    return tails


def test_rows_with_a_text_load_only_the_samples_that_may_match(
    run: Run, project: Project, mate: User, loaded_tails: list[str]
) -> None:
    """A row without a length or a step does not load more samples for the other rows."""
    push(builders.run(project, "other"), ROWS, step=1)
    key = get_sample(run, "from messages").prompt_key
    rows = [
        {"prompt": "p1", "response": "best", "run": "grpo", "split": "eval", **YES},
        {"prompt_key": key, "content_key": "x", "step": 2, **YES},
    ]
    result = import_labels(mate, rows)
    assert result["labels"]["new"] == 1
    assert [(row, kind) for row, kind, _ in list_problems(result)] == [(1, "unmatched")]
    assert sorted(loaded_tails) == ["best", "from messages"]


def test_a_prompt_with_too_many_samples_is_refused_before_they_are_loaded(
    run: Run, mate: User, loaded_tails: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_everywhere(monkeypatch, candidates, "MAX_CANDIDATES", 4)
    key = get_sample(run, "best").prompt_key
    rows = [
        {"prompt_key": key, "content_key": "x", **YES},
        {"prompt_key": key, "content_key": "y", "name": "quality", "value": 1},
        {**ROWS[2], "step": 1, **YES},
    ]
    result = import_labels(mate, rows)
    assert [(row, kind) for row, kind, _ in list_problems(result)] == [(0, "ambiguous"), (1, "ambiguous")]
    assert all(message.startswith("More than 4 samples match.") for _row, _kind, message in list_problems(result))
    assert result["labels"]["new"] == 1 and loaded_tails == ["from messages"]


def test_the_number_of_candidates_of_a_request_is_limited(
    run: Run, mate: User, loaded_tails: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollouts.label_import.candidates.MAX_REQUEST_CANDIDATES", 2)
    rows = [
        {"run": "grpo", "step": 1, "split": "train", "content_key": "x", **YES},  # each sample of the step
        {"prompt": "p1", "response": "best", **YES},
        {**ROWS[2], "run": "grpo", "step": 2, **YES},
        {"prompt": "p1", "response": "best", "split": "eval", "name": "quality", "value": 3},
        {**ROWS[2], "step": 1, **YES},
    ]
    result = import_labels(mate, rows)
    problems = list_problems(result)
    assert [(row, kind) for row, kind, _ in problems] == [(0, "ambiguous"), (1, "ambiguous"), (3, "ambiguous")]
    assert all("match more than 2 samples. Import fewer rows" in message for _row, _kind, message in problems)
    assert result["labels"]["new"] == 2 and loaded_tails == ["from messages"] * 2


def test_rows_that_are_not_imported_are_listed_with_a_reason_and_the_others_are_stored(run: Run, mate: User) -> None:
    best = get_sample(run, "best")
    other = builders.run(builders.project("elsewhere"), "grpo")
    push(other, ROWS)
    foreign = Sample.objects.filter(step__run=other).first()
    place = {"run": "grpo", "step": 1, "group": "a", "index": 0}
    rows: list[Any] = [
        {"sample": foreign.pk, **YES},  # type: ignore[union-attr]
        {"run": "gone", "step": 1, "index": 0, **YES},
        {**place, "step": 9, **YES},
        {**place, "index": 7, **YES},
        {**place, "split": "train", "prompt": "p1", "response": "changed", **YES},
        {"sample": best.pk, "step": 2, **YES},
        YES,
        {"prompt": "p1", "response": "best", **YES},
        {**place, **YES},
        {"sample": best.pk, "name": "quality", "value": 9},
        {"sample": best.pk, "name": "unknown", "value": 1},
        {"sample": best.pk, "name": "correct"},
        {"sample": best.pk, **YES, "start": 0, "end": 99},
        {"sample": best.pk, **YES, "updated_at": "2999-01-01"},
        {"sample": best.pk, **YES, "updated_at": "yesterday"},
        {"sample": best.pk, **YES, "source": "robot"},
        {"sample": best.pk, **YES, "source": "model"},
        {"sample": best.pk, "name": "correct", "json_value": "yes"},
        {"response": "best", **YES},
        "no object",
        {"sample": best.pk, **YES},
    ]
    result = import_labels(mate, rows)
    expected = [
        ("unmatched", "no sample with this id"), ("unmatched", "no run 'gone'"), ("unmatched", "no such step"),
        ("unmatched", "no sample at this place"), ("unmatched", "No sample has this prompt and response"),
        ("unmatched", "another place or text"), ("unmatched", "names no sample"), ("ambiguous", "3 samples match"),
        ("ambiguous", "2 samples match"), ("invalid", "`quality` must be"), ("invalid", "no question `unknown`"),
        ("invalid", "`value` is required"), ("invalid", "ends after the response"), ("invalid", "in the future"),
        ("invalid", "must be a time"), ("invalid", "`source` must be"), ("invalid", "`author` is required"),
        ("invalid", "not JSON"), ("invalid", "both `prompt` and `response`"), ("invalid", "not an object"),
    ]  # fmt: skip
    assert [(row, kind) for row, kind, _ in list_problems(result)] == [
        (n, kind) for n, (kind, _) in enumerate(expected)
    ]
    for (_row, _kind, message), (_, part) in zip(list_problems(result), expected, strict=True):
        assert part in message
    assert result["labels"]["new"] == 1 and Label.objects.count() == 1

    every = import_labels(mate, rows[7:8], all_matches=True)
    assert every["labels"] == {"new": 2, "changed": 0, "unchanged": 1} and every["problems"] == []
    assert import_labels(mate, [{"step": 2, "group": "a", "index": 0, **YES}], run="grpo")["labels"]["unchanged"] == 1


def test_the_newer_answer_of_an_author_wins_and_a_second_import_changes_nothing(
    run: Run, mate: User, owner: User
) -> None:
    best = get_sample(run, "best")
    store_labels(run, mate, [Answer(best.pk, "correct", True)])
    label = Label.objects.get()
    long_ago = {"updated_at": (label.updated_at - timedelta(days=9)).isoformat()}
    later = {"updated_at": (label.updated_at + timedelta(seconds=9)).isoformat()}
    no, bad = (
        {"sample": best.pk, "name": "correct", "value": False},
        {"sample": best.pk, "name": "flag", "value": "bad"},
    )
    assert [kind for _, kind, _ in list_problems(import_labels(mate, [no | long_ago]))] == ["older"]
    assert import_labels(mate, [no | {"value": True} | long_ago])["labels"]["unchanged"] == 1
    # a row without a time has that of its file
    assert [kind for _, kind, _ in list_problems(import_labels(mate, [no], time=long_ago["updated_at"]))] == ["older"]
    assert not LabelChange.objects.exists() and Label.objects.get().updated_at == label.updated_at

    assert import_labels(mate, [no | later, no | {"value": True} | long_ago, bad | later], dry_run=True)["labels"] == {
        "new": 1, "changed": 1, "unchanged": 1
    }  # fmt: skip
    assert Label.objects.get().value is True
    for _time in range(2):
        result = import_labels(mate, [no | later, bad | later])
    assert result["labels"] == {"new": 0, "changed": 0, "unchanged": 2}
    label.refresh_from_db()
    assert (label.value, label.updated_at.isoformat()) == (False, later["updated_at"])
    assert [(row.value, row.at) for row in LabelChange.objects.all()] == [
        (True, Label.objects.get(name="correct").created_at)
    ]
    best.step.refresh_from_db()
    assert best.step.flags == 1

    # an older OK does not withdraw the newer flag that says bad, and the other way around
    ok = {"sample": best.pk, "name": "review", "value": "ok"}
    assert [kind for _, kind, _ in list_problems(import_labels(mate, [ok | long_ago]))] == ["older"]
    newest = {"updated_at": datetime.now(UTC).isoformat()} | {
        "updated_at": (label.updated_at + timedelta(hours=1)).isoformat()
    }
    assert import_labels(mate, [ok | newest])["labels"]["new"] == 1
    best.step.refresh_from_db()
    assert best.step.flags == 0 and Label.objects.get(name="flag").withdrawn_at is not None
    assert list_problems(import_labels(mate, [bad | later]))[0][1] == "older"
    assert set(run.project.audit.filter(verb="label.import").values_list("user__username", flat=True)) == {"mina"}
    assert owner.pk not in Label.objects.values_list("user", flat=True)


@pytest.mark.parametrize("value", [True, None])
def test_an_answer_that_is_repeated_is_as_new_as_its_repetition(run: Run, mate: User, value: bool | None) -> None:
    best = get_sample(run, "best")
    store_labels(run, mate, [Answer(best.pk, "correct", True)])
    if value is None:
        store_labels(run, mate, [Answer(best.pk, "correct", None)])
    stored = Label.objects.get()
    row = {"sample": best.pk, "name": "correct", "value": value}
    later, latest = ((stored.updated_at + timedelta(hours=hours)).isoformat() for hours in (1, 2))
    changes = LabelChange.objects.count()
    assert import_labels(mate, [row], time=latest)["labels"]["unchanged"] == 1
    assert Label.objects.get().updated_at == stored.updated_at, "an import without times changes nothing"
    assert import_labels(mate, [row | {"updated_at": latest}])["labels"]["unchanged"] == 1
    assert Label.objects.get().updated_at.isoformat() == latest and LabelChange.objects.count() == changes
    other = {"sample": best.pk, "name": "correct", "value": False, "updated_at": later}
    assert [kind for _, kind, _ in list_problems(import_labels(mate, [other]))] == ["older"]


def test_a_repeated_label_stays_that_of_who_stored_it(project: Project, run: Run, mate: User) -> None:
    best, ben = get_sample(run, "best"), builders.member(project, "ben", "annotator")
    row = {"sample": best.pk, "name": "correct", "value": True, "source": "model", "author": "judge"}
    import_labels(ben, [row])
    later = (Label.objects.get().updated_at + timedelta(hours=1)).isoformat()
    assert import_labels(mate, [row | {"updated_at": later}])["labels"]["unchanged"] == 1
    label = Label.objects.get()
    assert (label.user, label.updated_at.isoformat()) == (ben, later)


def test_people_import_their_own_labels_and_a_maintainer_those_of_others(
    run: Run, project: Project, mate: User, owner: User
) -> None:
    best, nina = get_sample(run, "best"), builders.member(project, "nina", "annotator")
    lead, vera = builders.member(project, "lead", "maintainer"), builders.member(project, "vera", "viewer")
    rows = [
        {"sample": best.pk, **YES},
        {"sample": best.pk, **YES, "author": "mina"},
        {"sample": best.pk, **YES, "author": "someone else"},
        {"sample": best.pk, **YES, "source": "model", "author": "judge"},
        {"sample": best.pk, **YES, "source": "code", "author": "mina"},
    ]
    result = import_labels(nina, rows)
    assert [(row, kind) for row, kind, _ in list_problems(result)] == [(1, "forbidden"), (2, "forbidden")]
    assert "Only a maintainer" in result["problems"][0]["message"]
    assert {(row.author, row.source) for row in Label.objects.all()} == {
        ("nina", "human"), ("judge", "model"), ("mina", "code")
    }  # fmt: skip
    assert import_labels(lead, rows[1:3])["labels"]["new"] == 2
    held = {row.author: row.user.username for row in Label.objects.filter(source="human")}
    assert held == {"nina": "nina", "mina": "mina", "someone else": "lead"}
    entry = project.audit.filter(verb="label.import").latest("pk")
    assert entry.user == lead and entry.detail == {"new": 2, "changed": 0, "author": "mina, someone else"}
    # the label of another person is not an answer of the reader
    page = ApiClient.signed_in(lead)("GET", f"/samples/{best.pk}/labels/").content.decode()
    assert "someone else" in page and 'value="yes" checked' not in page.replace("checked=", "checked")

    body = {"project": "math", "rows": rows[:1]}
    for caller in (ApiClient.with_token(vera, "annotate"), ApiClient.with_token(lead, "read")):
        assert caller("POST", "labels/import/", body).status_code == 403
    stranger = User.objects.create_user("stranger")
    assert ApiClient.signed_in(stranger)("POST", "labels/import/", body).status_code == 404
    assert owner.username not in held


def test_a_member_can_replace_labels_imported_before_the_account_existed(run: Run, project: Project) -> None:
    best, lead = get_sample(run, "best"), builders.member(project, "lead", "maintainer")
    User.objects.create_superuser("root")
    names = ("nina", "otto", "root")
    flags = [{"sample": best.pk, "name": "flag", "value": "bad", "author": name} for name in names]

    def list_users() -> dict[str, str]:
        return {row.author: row.user.username for row in Label.objects.all()}

    import_labels(lead, flags)
    assert list_users() == {"nina": "lead", "otto": "lead", "root": "root"}  # an administrator needs no membership
    nina, _otto = (builders.member(project, name, "annotator") for name in names[:2])
    for label in ("bad", "good"):  # the same again, then another one
        response = ApiClient.signed_in(nina)("POST", "flags/", {"sample": best.pk, "label": label})
        assert (response.status_code, response.json()["label"]) == (200, label)
    later = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    import_labels(lead, [{**flags[1], "value": "unsure", "updated_at": later}])
    assert list_users() == {"nina": "nina", "otto": "otto", "root": "root"}


def test_a_member_can_change_and_withdraw_labels_imported_before_the_account_existed(
    run: Run, project: Project
) -> None:
    best, lead = get_sample(run, "best"), builders.member(project, "lead", "maintainer")
    flag = {"name": "flag", "value": "bad"}
    import_labels(lead, [{"sample": best.pk, "author": "nina", **answer} for answer in (flag, YES)])
    nina, otto = (ApiClient.signed_in(builders.member(project, name, "annotator")) for name in ("nina", "otto"))
    flagged, answered = (Label.objects.get(name=name) for name in ("flag", "correct"))
    for path, change in ((f"flags/{flagged.pk}/", {"label": "good"}), (f"labels/{answered.pk}/", {"withdrawn": True})):
        assert [caller("PATCH", path, change).status_code for caller in (otto, nina)] == [403, 200]
    flagged.refresh_from_db()
    assert (flagged.value, flagged.user.username) == ("good", "nina")
    assert Label.objects.active().get() == flagged


@pytest.mark.parametrize("unit", ["sample", "group"])
def test_a_blind_reviewer_cannot_find_out_the_answers_of_models_by_importing(
    run: Run, mate: User, owner: User, unit: str
) -> None:
    best, other = get_sample(run, "best"), get_sample(run, "from messages")
    for sample in (best, other):
        store_labels(run, owner, [Answer(sample.pk, "correct", True, source="model", author="judge")])
    settings = {"name": "blind", "runs": [run], "q": "group:a", "unit": unit, "is_blind": True}
    queue = queues.create_queue(run.project, owner, settings)
    old = {"source": "model", "author": "judge", "updated_at": "2020-01-01T00:00:00+00:00"}
    rows = [{"sample": best.pk, "name": "correct", "value": value, **old} for value in (True, False)]
    rows.append({**rows[0], "sample": other.pk})
    result = import_labels(mate, [*rows, {"sample": best.pk, **YES}], dry_run=True)
    assert [(row, kind) for row, kind, _ in list_problems(result)] == [(0, "forbidden"), (1, "forbidden")]
    assert (result["labels"]["unchanged"], result["labels"]["new"]) == (1, 1)
    queues.close_queue(queue, owner)
    assert import_labels(mate, rows[:1], dry_run=True)["labels"]["unchanged"] == 1


def test_a_request_that_is_not_valid_says_why(run: Run, mate: User) -> None:
    api = ApiClient.with_token(mate, "annotate")
    for body, field in (
        ({"rows": []}, "rows"),
        ({"rows": [YES] * 2001}, "rows"),
        ({"rows": [YES], "run": "gone"}, "run"),
        ({"rows": [YES], "time": "noon"}, "time"),
        ({"rows": [YES], "other": 1}, "other"),
    ):
        response = api("POST", "labels/import/", {"project": "math", **body})
        assert (response.status_code, response.json()["error"]["field"]) == (400, field)


def test_thousands_of_rows_take_as_many_queries_as_a_few(project: Project, run: Run, owner: User) -> None:
    """INSERT statements, which write many rows each, are not counted."""
    texts = [{"prompt": f"p{n // 4}", "response": f"r{n}", "group": f"g{n // 4}", "index": n % 4} for n in range(40)]
    for step in (10, 11):
        push(run, texts, step=step)
    rows = [
        {"run": "grpo", "step": step, **text, "name": f"q{name}", "value": True, "source": "model", "author": author}
        for author in "abc"
        for name in range(10)
        for step in (10, 11)
        for text in texts
    ]
    counts = []
    for part in (rows[:80], rows[80:2_080], rows[:2_000]):
        with CaptureQueriesContext(connection) as queries:
            assert import_labels(owner, part)["problems"] == []
        assert len(queries.captured_queries) < 90
        counts.append(sum(not query["sql"].startswith("INSERT") for query in queries.captured_queries))
    assert max(counts) <= min(counts) + 5 and Label.objects.count() == 2_080
