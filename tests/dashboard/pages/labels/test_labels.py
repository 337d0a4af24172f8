"""The labels of a sample on its pages, and the editor of the rubric."""

from __future__ import annotations

import re

from django.contrib.auth.models import User
from django.test import Client

from rollouts.labels import Answer, load_rubric, save_rubric, store_labels
from rollouts.models import Label, Project, Run, Sample
from tests.dashboard.support.api_client import create_filled_run, get_first_sample
from tests.rollouts.labels.test_rubric import ROWS
from tests.support import builders


def read_own(user: User) -> dict[str, object]:
    return {row.name: row.value for row in Label.objects.active().filter(user=user)}


def test_the_form_of_a_sample_saves_replaces_and_withdraws(
    project: Project, owner: User, mate: User, reader: Client
) -> None:
    save_rubric(project, owner, [{**row, "required": row["key"] == "correct"} for row in ROWS], "Be **fair**.")
    sample = get_first_sample(create_filled_run(project))
    store_labels(sample.step.run, owner, [Answer(sample.pk, "style", "bad", "<b>ugly</b>")])
    path = f"/samples/{sample.pk}/labels/"
    html = reader.get(path).content.decode()
    assert "It is 0 at step 1." in html and "Be <strong>fair</strong>." in html and "&lt;b&gt;ugly" in html

    answers = {"value:quality": "4", "rationale:quality": "so\r\nso", "value:note": "", "value:review": "ok"}
    missing = reader.post(path, answers)
    assert missing.status_code == 400 and "This question needs an answer." in missing.content.decode()
    assert 'value="4" checked' in missing.content.decode() and not read_own(mate)
    answers |= {"value:correct": "no", "value:errors": ["sum", "logic"], "quote:errors": "at step"}
    saved = reader.post(path, answers | {"next": f"/samples/{sample.pk}/"})
    assert (saved.status_code, saved["Location"]) == (303, f"/samples/{sample.pk}/")
    assert read_own(mate) == {"quality": 4, "correct": False, "errors": ["logic", "sum"], "review": "ok"}
    label = Label.objects.get(name="errors")
    assert "It is 0 at step 1."[label.start : label.end] == "at step"
    assert Label.objects.get(name="quality").rationale == "so\nso"

    shown = reader.get(path).content.decode()
    assert 'value="no" checked' in shown and ">at step</textarea>" in shown
    wrong = reader.post(path, answers | {"value:cost": "-1", "quote:errors": "not there"}).content.decode()
    assert "must be a number from 0" in wrong and "does not contain this text" in wrong
    reader.post(path, {"value:correct": "yes"})
    assert read_own(mate) == {"correct": True}
    shown = reader.get(path).content.decode()
    assert "history" in shown and shown.count("<li>") == 3  # two labels, one earlier state
    pane = reader.get(f"/samples/{sample.pk}/").content.decode()
    assert "<code>style</code>" in pane and f'href="{path}"' in pane


def test_another_answer_keeps_the_marked_place_of_a_text_that_occurs_several_times(
    project: Project, owner: User, mate: User, reader: Client
) -> None:
    save_rubric(project, owner, ROWS, "")
    sample = get_first_sample(create_filled_run(project))
    second = "It is 0 at step 1.".rindex("t")
    store_labels(sample.step.run, mate, [Answer(sample.pk, "errors", ["sum"], start=second, end=second + 1)])
    answers = {"value:correct": "no", "value:errors": ["logic"], "quote:errors": "t"}
    assert reader.post(f"/samples/{sample.pk}/labels/", answers).status_code == 303
    assert (Label.objects.get(name="errors").start, read_own(mate)["errors"]) == (second, ["logic"])


def test_a_long_rationale_is_folded(project: Project, owner: User, mate: User, reader: Client) -> None:
    save_rubric(project, owner, ROWS, "")
    sample = get_first_sample(create_filled_run(project))
    long = "first words " + "of many thousands " * 400 + "\u202elast words"
    answers = [Answer(sample.pk, "style", "bad", long), Answer(sample.pk, "correct", True, "short why")]
    store_labels(sample.step.run, mate, answers)
    for path in (f"/samples/{sample.pk}/", f"/samples/{sample.pk}/labels/"):
        html = reader.get(path).content.decode()
        (folded,) = re.findall(r'<details class="long-text">.*?</details>', html, re.S)
        summary = folded.partition("</summary>")[0]
        assert "first words" in summary and len(summary) < 400
        assert "last words" in folded and "last words</span>" not in html
        assert ">short why</span>" in html


def test_an_answer_that_the_new_version_does_not_offer_stays_until_it_is_replaced(
    project: Project, owner: User, mate: User, reader: Client
) -> None:
    quality = {"key": "quality", "title": "Quality", "kind": "rating", "minimum": 1, "maximum": 5}
    options = [{"key": key} for key in ("sum", "logic", "other")]
    errors = {"key": "errors", "title": "Errors", "kind": "choices", "options": options}
    save_rubric(project, owner, [quality, errors])
    sample = get_first_sample(create_filled_run(project))
    store_labels(
        sample.step.run, mate, [Answer(sample.pk, "quality", 4), Answer(sample.pk, "errors", ["sum", "logic"])]
    )
    save_rubric(project, owner, [{**quality, "maximum": 3}, {**errors, "options": options[1:]}])
    path, before = f"/samples/{sample.pk}/labels/", list(Label.objects.order_by("pk").values())

    html = reader.get(path).content.decode()
    assert "You answered 4, which is no longer a choice." in html and "You answered sum, which" in html
    assert reader.post(path, {"value:errors": "logic", "value:review": "ok"}).status_code == 303
    assert read_own(mate) == {"quality": 4, "errors": ["sum", "logic"], "review": "ok"}
    assert list(Label.objects.exclude(name="review").order_by("pk").values()) == before, "with their version and time"

    why = reader.post(path, {"value:errors": "logic", "rationale:quality": "why"})
    assert why.status_code == 400 and "your earlier one is no longer a choice" in why.content.decode()
    reader.post(path, {"value:errors": "logic", "value:quality": "", "value:review": "ok"})
    assert read_own(mate) == {"errors": ["sum", "logic"], "review": "ok"}
    reader.post(path, {"value:quality": "2", "value:review": "ok"})
    assert read_own(mate) == {"quality": 2, "review": "ok"}


def test_a_viewer_reads_labels_and_cannot_store_any(project: Project, client: Client) -> None:
    sample = get_first_sample(create_filled_run(project))
    client.force_login(builders.member(project, "vera", "viewer"))
    assert "Save labels" not in client.get(f"/samples/{sample.pk}/labels/").content.decode()
    assert client.post(f"/samples/{sample.pk}/labels/", {"value:review": "ok"}).status_code == 403
    assert client.get("/settings/math/rubric/").status_code == 200
    assert client.post("/settings/math/rubric/", {}).status_code == 403


def test_the_editor_previews_saves_versions_and_shows_errors_at_their_field(
    project: Project, owner: User, client: Client
) -> None:
    client.force_login(owner)
    path = "/settings/math/rubric/"
    assert "no rubric of its own" in client.get(path).content.decode()
    form = {
        "base": "0", "row": ["0", "1", "2"], "guidelines": "Read *all*.",
        "position:0": "2", "key:0": "quality", "title:0": "Quality", "kind:0": "rating", "maximum:0": "3",
        "position:1": "1", "key:1": "style", "title:1": "Style", "kind:1": "choice", "required:1": "on",
        "options:1": "good = Good\r\nbad", "description:1": "Look **closely**.",
        "key:2": "", "kind:2": "yes-no",
    }  # fmt: skip
    preview = client.post(path, form | {"do": "preview"}).content.decode()
    assert "Look <strong>closely</strong>." in preview and "Read <em>all</em>." in preview
    assert preview.index('name="value:style"') < preview.index('name="value:quality"') and "disabled" in preview
    assert load_rubric(project).number == 0
    wrong = client.post(path, form | {"options:1": "good"})
    page = wrong.content.decode()
    assert wrong.status_code == 400 and "Question `style` needs 2 to 60 options." in page
    assert page.index('name="options:0"') < page.index("needs 2 to 60") < page.index('name="minimum:0"')

    assert client.post(path, form | {"do": "save"}).status_code == 302
    saved = load_rubric(project)
    assert [(question.key, question.required) for question in saved.questions] == [("style", True), ("quality", False)]
    assert (saved.number, saved.guidelines, saved.questions[1].ratings) == (1, "Read *all*.", [1, 2, 3])
    outdated = client.post(path, form | {"do": "save", "title:0": "Other"})
    assert outdated.status_code == 400 and "now version 1, not 0" in outdated.content.decode()
    shown = client.get(path).content.decode()
    assert "good = Good\nbad = bad" in shown and 'name="base" value="1"' in shown
    client.post(path, form | {"base": "1", "remove:0": "on", "do": "save"})
    assert [question.key for question in load_rubric(project).questions] == ["style"]
    assert "Quality" in client.get(f"{path}?version=1").content.decode()
    assert client.get(f"{path}?version=9").status_code == 302


def test_an_empty_rubric_can_start_with_an_example(project: Project, client: Client) -> None:
    client.force_login(builders.member(project, "lena", "maintainer"))
    path = "/settings/math/rubric/"
    assert 'href="?example=1"' in client.get(path).content.decode()
    page = client.get(f"{path}?example=1").content.decode()
    assert page.count("Is the answer correct?") == 3 and "Nothing is saved yet" in page  # preview, summary and field
    assert load_rubric(project).number == 0
    form = re.findall(r'<(?:input|textarea)[^>]* name="([a-z]+:\d)"(?: value="([^"]*)"|[^>]*>([^<]*)<)', page)
    kinds = re.findall(r'<select name="(kind:\d)">.*?<option value="([a-z-]+)" selected>', page, re.DOTALL)
    fields = {name: value or text for name, value, text in form if not name.startswith(("remove", "range"))} | dict(
        kinds
    )
    rows = [str(n) for n in range(6)]
    assert client.post(path, {**fields, "row": rows, "base": "0", "do": "save"}).status_code == 302
    assert [question.kind for question in load_rubric(project).questions] == ["yes-no", "choices", "rating"]
    assert 'href="?example=1"' not in client.get(path).content.decode()


def test_cannot_judge_is_stored_as_a_review_verdict(project: Project, mate: User, reader: Client) -> None:
    run: Run = create_filled_run(project)
    sample: Sample = get_first_sample(run)
    response = reader.post(
        f"/samples/{sample.pk}/verdict/", {"cannot-judge": "1"}, headers={"Accept": "application/json"}
    )
    assert response.json() == {"message": "Saved: cannot judge."}
    assert read_own(mate) == {"review": "cannot-judge"}
    assert "? cannot judge" in reader.get(f"/review/?run={run.uid}", follow=True).content.decode()
