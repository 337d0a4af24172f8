"""Flagging a selection on the step page, and undoing it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Label, Project, Run, Sample
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    for step in (1, 2):
        index_file(run, lines(*(generation(f"ask {n}", f"{n} at {step}", n / 4, step) for n in range(4))), step)
    return run


def list_sample_ids(run: Run, **which: Any) -> list[str]:
    return list(
        Sample.objects.filter(step__run=run, **which).order_by("step__step", "ordinal").values_list("pk", flat=True)
    )


def post_for_json(client: Client, path: str, status: int = 200, **fields: Any) -> dict[str, Any]:
    answer = client.post(path, fields, headers={"Accept": "application/json"})
    assert answer.status_code == status, answer.content
    return dict(json.loads(answer.content))


def list_flagged_samples() -> list[str]:
    return sorted(Label.objects.filter(withdrawn_at=None).values_list("sample", flat=True))


def test_the_box_has_the_reasons_of_the_project(run: Run, project: Project, reader: Client) -> None:
    project.reasons = [{"key": "loop", "name": "loops for ever"}]
    project.save()
    assert "loops for ever" in reader.get(f"/runs/{run.uid}/flags/").content.decode()


def test_the_selected_samples_are_flagged_and_undone(run: Run, reader: Client) -> None:
    expected = list_sample_ids(run)[:3]
    response = post_for_json(
        reader, f"/runs/{run.uid}/flags/", samples=",".join(expected), reason="truncated", text=" cut "
    )
    assert response == {"message": "Flagged: “truncated” (bad) on 3 samples.", "undoable": True}
    assert list_flagged_samples() == sorted(expected)
    assert {flag.rationale for flag in Label.objects.all()} == {"cut"}
    response = post_for_json(reader, f"/runs/{run.uid}/flags/undo/")
    assert response == {"message": "Undone: “truncated” (bad) on 3 samples.", "sample": ""}
    assert list_flagged_samples() == []
    assert "Nothing to undo in this run" in post_for_json(reader, f"/runs/{run.uid}/flags/undo/", 400)["message"]


def test_all_of_a_query_is_flagged_within_its_step_or_in_all_steps(run: Run, reader: Client) -> None:
    post_for_json(reader, f"/runs/{run.uid}/flags/", all="1", q="score>=0.5", split="train", step="2", seen="2")
    assert list_flagged_samples() == sorted(list_sample_ids(run, step__step=2, score__gte=0.5))
    post_for_json(reader, f"/runs/{run.uid}/flags/", all="1", q="score<0.5", split="train", seen="4", reason="other")
    assert len(list_flagged_samples()) == 6


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"all": "1", "q": "score>=0.5", "split": "train", "step": "2", "seen": "1"},
            "now matches 2 samples instead of 1",
        ),
        ({"all": "1", "q": "score<", "split": "train"}, "The query is incomplete"),
        ({"all": "1", "split": "train", "step": "9"}, "no train step 9"),
        ({"all": "1", "split": "test"}, "`split` must be one of"),
        ({"all": "1", "split": "train", "step": "x"}, "`step` must be a whole number"),
        ({"samples": ""}, "Select 1 to 2,000 samples, not 0."),
        ({"samples": "nowhere"}, "Sample nowhere not found"),
        ({"samples": "a\x00b"}, "Sample a\x00b not found"),
    ],
)
def test_a_refused_flag_request_is_explained_and_flags_nothing(
    run: Run, reader: Client, fields: dict[str, str], message: str
) -> None:
    assert message in post_for_json(reader, f"/runs/{run.uid}/flags/", 400, **fields)["message"]
    assert list_flagged_samples() == []


def test_a_viewer_cannot_flag_many_and_a_stranger_does_not_see_the_run(
    run: Run, project: Project, client: Client, stranger: User
) -> None:
    for who, status in ((builders.member(project, "vera", "viewer"), 403), (stranger, 404)):
        client.force_login(who)
        for path in ("flags/", "flags/undo/"):
            assert client.post(f"/runs/{run.uid}/{path}", {"samples": list_sample_ids(run)[0]}).status_code == status
        assert client.get(f"/runs/{run.uid}/flags/").status_code == status
    assert list_flagged_samples() == []


def test_a_flag_on_the_sample_and_its_withdrawal_are_undone_without_script(run: Run, reader: Client) -> None:
    chosen = list_sample_ids(run)[0]
    page = f"/samples/{chosen}/"
    reader.post(f"{page}flags/", {"reason": "other", "next": page})
    reader.post(f"/flags/{Label.objects.get().pk}/withdraw/")
    seen = []
    for _ in range(3):
        response = reader.post(f"/runs/{run.uid}/flags/undo/", {"next": page}, follow=True)
        assert response.redirect_chain == [(page, 303)]
        seen.append((list_flagged_samples() == [chosen], "Undone" in response.content.decode()))
    assert seen == [(True, True), (False, True), (False, False)]


def test_a_user_can_undo_flags_that_were_set_with_their_token(run: Run, owner: User, client: Client) -> None:
    api = ApiClient.with_token(owner, "annotate")
    pk = Sample.objects.earliest("pk").pk
    flag = api("POST", "flags/", {"sample": pk, "reason": "other"}).json()
    api("PATCH", f"flags/{flag['id']}/", {"text": "loops"})
    api("PATCH", f"flags/{flag['id']}/", {"withdrawn": True})
    client.force_login(owner)
    states = []
    for _act in range(3):
        post_for_json(client, f"/runs/{run.uid}/flags/undo/")
        label = Label.objects.get()
        states.append((label.rationale, label.withdrawn_at is None))
    assert states == [("loops", True), ("", True), ("", False)]


def test_new_reasons_appear_on_a_page_that_the_browser_has_cached(run: Run, project: Project, reader: Client) -> None:
    chosen = Sample.objects.filter(step__run=run)[0]
    for path in (f"/runs/{run.uid}/steps/{chosen.step.step}/", f"/samples/{chosen.pk}/"):
        known = reader.get(path).headers["ETag"]
        assert reader.get(path, headers={"If-None-Match": known}).status_code == 304
        project.reasons = [{"key": path, "name": f"odd at {path}"}]
        project.save()
        assert f"odd at {path}" in reader.get(path, headers={"If-None-Match": known}).content.decode()


def test_a_flag_that_is_sent_twice_is_one_flag_and_a_refusal_says_why(run: Run, reader: Client) -> None:
    """The page sends a flag again if it got no answer."""
    sample = list_sample_ids(run)[0]
    for _ in range(2):
        assert post_for_json(reader, f"/samples/{sample}/flags/", reason="truncated", label="bad") == {"message": ""}
    assert list_flagged_samples() == [sample]
    assert "`label` must be one of" in post_for_json(reader, f"/samples/{sample}/flags/", 400, label="worst")["message"]
