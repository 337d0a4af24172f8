"""Findings on pages: created from samples, queries and charts, read by the team, and exported as one file."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from rollouts.findings import findings
from rollouts.metrics import series
from rollouts.models import EvidenceItem, Finding, Membership, Project, Run, Sample
from rollouts.runs import actions
from rollouts.samples import TEXT_PROPERTY_BITS
from rollouts.samples.record import MetricPoint
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces

TRAP = "</pre><script>alert(1)</script><img src=x onerror=alert(1)> {{ 7*7 }} \u202eback"
TYPED_TEXT = TRAP.replace("\u202e", "")  # what people write stays as it is in the field where they edit it
UNSAFE = re.compile(r"<img|<script(?! src=)|\son\w+=\"|javascript:|\u202e(?!</i>)")


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    rows = [generation(f"ask {n}", f"so it is {n}\n#### {n}", n / 4, gts=str(n)) for n in range(4)]
    index_file(run, lines(*rows))
    series.append_points(run, builders.attempt(run), [MetricPoint(step, {"score/mean": step / 7}) for step in range(4)])
    return run


@pytest.fixture
def finding(project: Project, mate: User) -> Finding:
    return findings.create_finding(project, mate, title="Loops", note="**mostly** late")


def get_sample(run: Run, ordinal: int = 0) -> Sample:
    return Sample.objects.select_related("step__run", "step__attempt", "dump").get(step__run=run, ordinal=ordinal)


def get_page(client: Client, url: str, status: int = 200) -> str:
    answer = client.get(url)
    assert answer.status_code == status, url
    return answer.content.decode()


def add_evidence(client: Client, status: int = 303, **fields: Any) -> str:
    response = client.post("/findings/add/", {"show": "sample", **fields})
    assert response.status_code == status, re.findall(r"data-message>.*", response.content.decode())
    return unescape(response.content.decode())


def test_a_sample_with_its_quote_and_the_query_become_a_new_finding(run: Run, reader: Client) -> None:
    shown = get_sample(run, 1)
    query = {"step": "1", "split": "train", "q": "score<0.5"}
    form = get_page(reader, f"/findings/add/?sample={shown.pk}&step=1&q=score<0.5")
    assert "2 of 4, step 1" in form and "score&lt;0.5" in form
    add_evidence(
        reader, sample=shown.pk, title="Wrong", quote="is 1\r\n#### 1", show=["sample", "query"], words="*see*", **query
    )
    rendered = get_page(reader, f"/findings/{Finding.objects.get().pk}/")
    for message in ("Wrong", "is 1\n#### 1</blockquote>", "<em>see</em>", "expected", "of 4</span>", "train step 1"):
        assert message in rendered, message
    assert [item.kind for item in EvidenceItem.objects.all()] == ["sample", "query"]


def test_a_user_who_may_edit_no_project_is_not_offered_a_new_finding(project: Project, client: Client) -> None:
    user = builders.member(project, "vera", "viewer")
    client.force_login(user)
    assert "New finding" not in get_page(client, "/findings/")
    Membership.objects.create(project=builders.project("code"), user=user, role="annotator")
    assert "New finding" in get_page(client, "/findings/") and "New finding" in get_page(
        client, "/findings/?project=code"
    )
    assert "New finding" not in get_page(client, "/findings/?project=math")


def test_a_forgotten_item_keeps_its_place_and_says_why_it_is_empty(run: Run, reader: Client) -> None:
    query = {"step": "1", "split": "train", "q": "score<0.5"}
    add_evidence(reader, sample=get_sample(run, 1).pk, title="Wrong", show=["sample", "query"], words="*see*", **query)
    held = {"forgotten": True, "run": {"uid": run.uid, "name": run.name}, "split": "train", "step": 1}
    EvidenceItem.objects.filter(kind="sample").update(held=json.dumps(held))
    EvidenceItem.objects.filter(kind="query").update(held=json.dumps({"forgotten": True}))
    for path in (f"/findings/{Finding.objects.get().pk}/", f"/findings/{Finding.objects.get().pk}/export/"):
        rendered = get_page(reader, path)
        assert rendered.count("administrator removed this text") >= 2 and "<em>see</em>" in rendered, path
        assert "train step 1" in rendered and "run deleted" not in rendered


def test_the_finding_used_last_is_offered_first(run: Run, project: Project, mate: User, reader: Client) -> None:
    first, second = (findings.create_finding(project, mate, title=title) for title in ("first", "second"))
    assert '" selected>' not in get_page(reader, f"/findings/add/?sample={get_sample(run).pk}")
    add_evidence(reader, sample=get_sample(run).pk, finding=first.pk)
    assert f'<option value="{first.pk}" selected>' in get_page(reader, f"/findings/add/?sample={get_sample(run).pk}")
    assert second.exhibits.count() == 0


def test_charts_are_added_from_the_overview_and_drawn_without_script(
    run: Run, reader: Client, finding: Finding
) -> None:
    assert '<option value="score/mean" selected>' in get_page(
        reader, f"/findings/add/?run={run.uid}&charts=1&names=score/mean"
    )
    add_evidence(reader, run=run.uid, charts="1", names="score/mean", finding=finding.pk, show=[])
    rendered = get_page(reader, f"/findings/{finding.pk}/")
    assert f'<polyline class="line-{run.colour}" points="52' in rendered
    assert "0.4286" in rendered


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"title": ""}, "A finding needs a title"),
        ({"title": "x", "quote": "never said"}, "The selected text is not in the recorded sample"),
        ({"finding": "0", "title": "x"}, ""),
        ({"finding": "x", "title": "x"}, "<code>finding</code> must be a whole number"),
        ({"title": "x", "near": "-1", "quote": "so"}, "<code>near</code> must be between"),
        ({"title": "x", "show": "query", "step": "9", "split": "train"}, "no train step 9"),
        ({"title": "x", "show": "query", "step": "1", "split": "train", "q": "score<"}, "The query is incomplete"),
    ],
)
def test_a_refused_addition_is_explained_keeps_the_typed_text_and_stores_nothing(
    run: Run, reader: Client, fields: dict[str, str], expected: str
) -> None:
    text = add_evidence(
        reader, 400 if expected else 404, sample=get_sample(run).pk, words="mine", **{"show": "sample", **fields}
    )
    assert expected in text
    assert not expected or "mine</textarea>" in text
    assert not Finding.objects.exists()


def test_evidence_must_be_chosen_for_an_existing_finding(run: Run, reader: Client, finding: Finding) -> None:
    assert "Choose what to add" in add_evidence(reader, 400, sample=get_sample(run).pk, finding=finding.pk, show=[])
    refused = add_evidence(reader, 400, sample=get_sample(run).pk, title="new", words="long work", show=[])
    assert "Choose what to add" in refused and "long work" in refused


def test_a_viewer_reads_but_does_not_write_and_a_stranger_sees_nothing(
    run: Run, project: Project, client: Client, mate: User, stranger: User, finding: Finding
) -> None:
    exhibit = findings.add_sample_evidence(finding, get_sample(run), mate)
    writes = (f"{finding.pk}/edit/", f"{finding.pk}/remove/", f"exhibits/{exhibit.pk}/", "add/")
    for who, reads, status in ((builders.member(project, "vera", "viewer"), 200, 403), (stranger, 404, 404)):
        client.force_login(who)
        for path in (f"/findings/{finding.pk}/", f"/findings/{finding.pk}/export/"):
            assert client.get(path).status_code == reads
        assert ("Loops" in get_page(client, "/findings/")) == (reads == 200)
        for path in writes:
            assert (
                client.post(f"/findings/{path}", {"sample": get_sample(run).pk, "title": "x"}).status_code == status
            ), path
    client.force_login(builders.member(project, "wim", "viewer"))
    assert 'name="version"' not in get_page(client, f"/findings/{finding.pk}/")


def test_evidence_comes_from_a_visible_project_and_stays_in_it(run: Run, reader: Client, mate: User) -> None:
    other = builders.project("other")
    hidden = builders.run(other, "hidden")
    index_file(hidden, lines(generation()))
    add_evidence(reader, 404, sample=get_sample(hidden).pk, title="x")
    add_evidence(reader, 404, run=hidden.uid, names="loss", title="x")
    other.memberships.create(user=mate, role="annotator")
    elsewhere = findings.create_finding(other, mate, title="elsewhere")
    assert "belongs to other, but the content you are adding belongs to math" in add_evidence(
        reader, 400, sample=get_sample(run).pk, finding=elsewhere.pk
    )


def test_title_and_note_are_changed_and_a_conflicting_edit_is_refused(reader: Client, finding: Finding) -> None:
    edit = f"/findings/{finding.pk}/edit/"
    assert reader.post(edit, {"title": "Loops", "note": "# *now*", "version": "1"}).status_code == 303
    assert "<em>now</em>" in get_page(reader, f"/findings/{finding.pk}/")
    answer = reader.post(edit, {"title": "Loops", "note": "my half hour of work", "version": "1"})
    assert answer.status_code == 400
    assert (
        "another user changed this finding" in answer.content.decode()
        and "my half hour of work" in answer.content.decode()
    )


def test_exhibits_are_moved_removed_and_commented(run: Run, reader: Client, finding: Finding, mate: User) -> None:
    first, second = (findings.add_sample_evidence(finding, get_sample(run, ordinal), mate) for ordinal in range(2))
    for pk, fields in ((second.pk, {"do": "up"}), (first.pk, {"do": "words", "words": "the **end**"})):
        assert reader.post(f"/findings/exhibits/{pk}/", fields).status_code == 303
    assert list(finding.exhibits.all()) == [second, first]
    assert "the <strong>end</strong>" in get_page(reader, f"/findings/{finding.pk}/")
    reader.post(f"/findings/exhibits/{first.pk}/", {"do": "out"})
    assert list(finding.exhibits.all()) == [second]


@pytest.mark.parametrize("wanted", [{}, {"do": "sideways"}])
def test_an_unknown_action_on_an_exhibit_is_refused(
    run: Run, reader: Client, finding: Finding, mate: User, wanted: dict[str, str]
) -> None:
    first, second = (findings.add_sample_evidence(finding, get_sample(run, ordinal), mate) for ordinal in range(2))
    response = reader.post(f"/findings/exhibits/{first.pk}/", wanted, headers={"Accept": "application/json"})
    assert response.status_code == 400
    assert response.json()["message"] == "`do` must be one of: up, down, out, words."
    assert list(finding.exhibits.all()) == [first, second]


def test_a_comment_is_changed_and_a_conflicting_change_is_refused(
    run: Run, reader: Client, finding: Finding, mate: User
) -> None:
    exhibit = findings.add_sample_evidence(finding, get_sample(run), mate, words='a "b"')
    path = f"/findings/exhibits/{exhibit.pk}/"
    assert 'name="began" value="a &quot;b&quot;"' in get_page(reader, f"/findings/{finding.pk}/")
    form = {"do": "words", "began": 'a "b"'}
    assert reader.post(path, {**form, "words": "first"}).status_code == 303
    answer = reader.post(path, {**form, "words": "my half hour of work"})
    text = answer.content.decode()
    assert (answer.status_code, EvidenceItem.objects.get().words) == (400, "first")
    assert "another user changed this comment" in text and "my half hour of work</textarea>" in text
    assert 'name="began" value="first"' in text, "the next save knows what stands there"


def test_the_page_of_a_refused_change_updates_from_the_finding_and_its_url_redirects_there(
    run: Run, reader: Client, finding: Finding, mate: User
) -> None:
    exhibit = findings.add_sample_evidence(finding, get_sample(run), mate, words="somebody else's")
    forms = {
        f"/findings/exhibits/{exhibit.pk}/": {"do": "words", "began": "", "words": "mine"},
        f"/findings/{finding.pk}/edit/": {"title": "Loops", "note": "mine", "version": "0"},
    }
    for path, form in forms.items():
        answer = reader.post(path, form)
        assert answer.status_code == 400
        assert f'id="finding" data-live data-url="/findings/{finding.pk}/"' in answer.content.decode()
        again = reader.get(path)  # as after a change of language or theme, or by a copied link
        assert (again.status_code, again.headers["Location"]) == (302, f"/findings/{finding.pk}/")
    assert reader.get("/findings/exhibits/999/").status_code == 404


def test_a_removed_finding_leaves_the_list_and_can_be_restored(reader: Client, finding: Finding) -> None:
    remove = f"/findings/{finding.pk}/remove/"
    reader.post(remove)
    get_page(reader, "/findings/")  # shows the message once
    assert "Loops" not in get_page(reader, "/findings/") and "Loops" in get_page(reader, "/findings/?removed=1")
    assert "Restore" in get_page(reader, f"/findings/{finding.pk}/")
    reader.post(remove, {"restore": "1"})
    assert "Loops" in get_page(reader, "/findings/")


def test_the_list_is_filtered_by_words_and_says_what_to_do_when_empty(
    reader: Client, project: Project, mate: User
) -> None:
    assert "No findings yet" in get_page(reader, "/findings/")
    findings.create_finding(project, mate, title="Loops", note="at the end")
    assert "Loops" in get_page(reader, "/findings/?name=END&project=math")
    assert "No findings match this filter" in get_page(reader, "/findings/?name=a%00b")


def test_a_finding_keeps_its_content_after_its_run_is_deleted_and_says_so(
    run: Run, reader: Client, finding: Finding, mate: User, owner: User
) -> None:
    findings.add_sample_evidence(finding, get_sample(run, 3), mate)
    assert f'href="/samples/{get_sample(run, 3).pk}/"' in get_page(reader, f"/findings/{finding.pk}/")
    actions.move_run_to_trash(run, owner)
    rendered = get_page(reader, f"/findings/{finding.pk}/")
    assert "(run deleted)" in rendered and "so it is 3" in rendered
    assert "/samples/" not in rendered


def test_the_block_for_a_chat_says_run_step_score_quote_and_link(
    run: Run, reader: Client, finding: Finding, mate: User, settings: Any
) -> None:
    settings.PUBLIC_URL = "https://deck.example"
    shown = get_sample(run, 1)
    add_evidence(reader, sample=shown.pk, finding=finding.pk, quote="so it is 1\n#### 1")
    rendered = unescape(get_page(reader, f"/findings/{finding.pk}/"))
    link = f"https://deck.example/samples/{shown.pk}/"
    assert f"grpo · train step 1 · score 0.25 · expected 1 · 17 chars\n> so it is 1\n> #### 1\n{link}</pre>" in rendered
    assert "Loops\n\n**mostly** late\n\ngrpo · train step 1" in rendered
    pane = unescape(get_page(reader, f"/samples/{shown.pk}/"))
    assert 'data-chat="grpo · train step 1 · score 0.25 · expected 1 · 17 chars"' in pane


def test_the_length_of_a_response_whose_text_was_not_recorded_is_not_0(
    run: Run, reader: Client, finding: Finding, mate: User
) -> None:
    Sample.objects.filter(step__run=run, ordinal=1).update(chars=0, facets=TEXT_PROPERTY_BITS["no-text"])
    findings.add_sample_evidence(finding, get_sample(run, 1), mate)
    findings.add_query_evidence(finding, run, mate, split="train", step=1, q="no:text")
    rendered = collapse_spaces(get_page(reader, f"/findings/{finding.pk}/"))
    assert "– chars" in rendered and "0 chars" not in rendered
    assert '<td class="num" data-label="length">–</td>' in rendered


def test_the_exported_file_has_no_script_loads_nothing_and_escapes_hostile_text(
    project: Project, mate: User, client: Client
) -> None:
    run = builders.run(project, TRAP[:100], uid="hostile")
    row = generation(TRAP, TRAP, 0.5, gts=TRAP, data_source=TRAP)
    index_file(run, lines(row, {**row, "output": "other"}))
    series.append_points(run, builders.attempt(run), [MetricPoint(step, {TRAP: float(step)}) for step in range(3)])
    finding = findings.create_finding(project, mate, title=TYPED_TEXT, note=TYPED_TEXT)
    for ordinal in range(2):
        findings.add_sample_evidence(finding, get_sample(run, ordinal), mate, words=TYPED_TEXT)
    findings.add_query_evidence(finding, run, mate, split="train", step=1, q='"alert"', words=TYPED_TEXT)
    findings.add_chart_evidence(finding, [run], [TRAP], mate)
    client.force_login(mate)
    response = client.get(f"/findings/{finding.pk}/export/")
    assert (
        "attachment" in response["Content-Disposition"] and "default-src 'none'" in response["Content-Security-Policy"]
    )
    for text in (
        response.content.decode(),
        get_page(client, f"/findings/{finding.pk}/"),
        get_page(client, "/findings/"),
    ):
        assert not UNSAFE.search(text), UNSAFE.search(text)
        assert "{{ 7*7 }}" in text and "&amp;lt;" not in text
    file = response.content.decode()
    assert not re.search(
        r'<\w+(\s+[\w-]+="[^"]*")*\s+src=|<link|<form|<button|<input|url\(|@import|<iframe|http-equiv=.refresh', file
    )
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', file)[0]
    assert response["Content-Security-Policy"].startswith(unescape(policy))
    assert "default-src 'none'" in unescape(policy)


def test_a_finding_of_many_exhibits_takes_as_many_queries_as_one_of_few(
    run: Run, reader: Client, finding: Finding, mate: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for ordinal in range(4):
        findings.add_sample_evidence(finding, get_sample(run, ordinal), mate)
    get_page(reader, f"/findings/{finding.pk}/")
    with django_assert_max_num_queries(10):
        get_page(reader, f"/findings/{finding.pk}/")


def test_annotators_can_add_a_query_without_matches_by_the_same_key(
    run: Run, reader: Client, client: Client, project: Project
) -> None:
    address = f"/runs/{run.uid}/steps/latest/?q=score>9"
    box = re.search(
        r'<a class="button" href="([^"]*)" data-key="q" data-finding-add', collapse_spaces(get_page(reader, address))
    )
    assert box
    rendered = get_page(reader, unescape(box[1]))
    assert "score&gt;9" in rendered and "0 of 4, step 1" in rendered
    values = {
        "show": "query",
        "run": run.uid,
        "step": "1",
        "split": "train",
        "q": "score>9",
        "title": "None is above 9",
    }
    add_evidence(reader, **values)
    assert json.loads(EvidenceItem.objects.get().held)["total"] == 0
    client.force_login(builders.member(project, "vera", "viewer"))
    assert 'data-key="q"' not in get_page(client, address)


def test_the_exported_file_is_in_the_language_of_its_reader(reader: Client, run: Run, finding: Finding) -> None:
    add_evidence(reader, sample=get_sample(run).pk, finding=str(finding.pk))
    file = reader.get(f"/findings/{finding.pk}/export/", headers={"Accept-Language": "zh-CN"}).content.decode()
    assert '<html lang="zh-hans">' in file
    assert "<summary>Response</summary>" not in file
    assert '<html lang="en">' in get_page(reader, f"/findings/{finding.pk}/export/")


def test_a_new_finding_names_its_project_and_offers_the_others(reader: Client, mate: User, finding: Finding) -> None:
    other = builders.project("code")
    Membership.objects.create(project=other, user=mate, role="annotator")
    builders.project("hidden")
    form = get_page(reader, "/findings/add/?project=math")
    assert re.findall(r"<option( selected)?>([^<]*)</option>", form) == [("", "code"), (" selected", "math")]
    reader.post("/findings/add/", {"project": "code", "title": "in the other"})
    assert Finding.objects.get(title="in the other").project == other


@pytest.mark.django_db
def test_without_a_project_to_write_in_the_form_names_the_mistake(client: Client) -> None:
    client.force_login(User.objects.create_user("nobody", password="nobody-password"))
    response = client.get("/findings/add/")
    page = response.content.decode()
    assert response.status_code == 400 and "Cannot add to a finding" in page and "Page not found" not in page
    assert "Ask a project owner for the annotator role." in page


def test_a_chart_of_a_query_becomes_evidence(run: Run, finding: Finding, reader: Client) -> None:
    query = "query:share|train||score>0.3"
    form = unescape(get_page(reader, f"/findings/add/?run={run.uid}&charts=1&names={quote(query)}&names=query:x"))
    assert f'<option value="{query}" selected>share of score>0.3</option>' in form and 'value="query:x"' not in form
    add_evidence(reader, run=run.uid, finding=str(finding.pk), show="", names=["score/mean", query])
    item = EvidenceItem.objects.get()
    curve = item.shown["curves"][-1]
    assert (curve["name"], curve["steps"], curve["values"]) == (query, [1], [0.5])
    shown = unescape(get_page(reader, f"/findings/{finding.pk}/"))
    assert "share of score>0.3" in shown and query not in shown
