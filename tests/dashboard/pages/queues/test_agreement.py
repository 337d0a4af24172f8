"""The agreement of people on a queue, and what a lead decides."""

from __future__ import annotations

import html as html_module
import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts import queues
from rollouts.errors import NotFoundError
from rollouts.labels import save_rubric
from rollouts.models import ItemDecision, Label, Project, Queue, Run, Step
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.support.query_rows import push
from tests.support import builders

QUESTIONS = [
    {"key": "correct", "title": "Is the answer correct?", "kind": "yes-no", "required": True},
    {"key": "wrong", "title": "What is wrong?", "kind": "choices", "options": [{"key": "hack"}, {"key": "loop"}]},
    {"key": "quality", "title": "Reasoning", "kind": "rating"},
]
ITEMS = 24


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    push(run, [{"response": f"text {n}", "group": "a", "index": n, "score": 0.7654321} for n in range(ITEMS)], step=1)
    return run


@pytest.fixture
def lead(project: Project) -> User:
    user = builders.member(project, "lena", "maintainer")
    save_rubric(project, user, QUESTIONS)
    return user


@pytest.fixture
def reviewers(project: Project) -> list[User]:
    return [builders.member(project, name, "annotator") for name in ("ann", "bob")]


def answer_items(queue: Queue, reviewers: list[User]) -> None:
    """Ann says yes to every second item. Bob says the opposite of items 4 and 5, cannot judge item 6, and finds a hack
    in item 7. Their ratings of item 8 are one apart, those of item 9 two."""
    ann, bob = reviewers
    for item in queue.items.order_by("position"):
        position, says = item.position, item.position % 2 == 0
        rating = {8: 4, 9: 5}.get(position, 3)
        queues.submit_answers(item, ann, {"correct": {"value": says}, "quality": {"value": 3}})
        answers: dict[str, dict[str, object]] = {"correct": {"value": says}, "quality": {"value": rating}}
        if position in (4, 5):
            answers["correct"] = {"value": not says, "rationale": "Because of it."}
        if position == 6:
            answers = {"review": {"value": "cannot-judge"}}
        if position == 7:
            answers["wrong"] = {"value": ["hack"]}
        queues.submit_answers(item, bob, answers)


def sign_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_a_lead_reads_the_agreement_and_decides(run: Run, lead: User, reviewers: list[User]) -> None:
    queue = queues.create_queue(run.project, lead, {"name": "check", "runs": [run], "num_reviewers_per_item": 2})
    queue.items.filter(position__in=(4, 8)).update(gold={"correct": True})
    answer_items(queue, reviewers)
    client, path = sign_in(lead), f"/queues/{queue.pk}/agreement/"

    found = ApiClient.with_token(lead, "read")("GET", f"queues/{queue.pk}/agreement/").json()
    rows = {(row["question"], row["option"]): row for row in found["questions"]}
    assert found["items_shared"] == ITEMS
    correct = rows["correct", ""]
    # Ann: 12 yes, 11 no without item 6; 21 of 23 the same. 1 - 45 * 4 / (2 * 23 * 23): alpha of two values.
    assert (correct["items"], correct["differing"]) == (23, 3)
    assert correct["percent"]["value"] == pytest.approx(21 / 23)
    assert correct["alpha"]["value"] == pytest.approx(1 - 45 * 4 / (2 * 24 * 22), abs=0.01)
    assert correct["alpha"]["low"] < correct["alpha"]["value"] < correct["alpha"]["high"]
    assert [pair["people"] for pair in correct["pairs"]] == [["ann", "bob"]]
    assert [(row["user"], row["judged"], row["correct"]) for row in correct["gold"]] == [("ann", 2, 2), ("bob", 2, 1)]
    assert (rows["wrong", "hack"]["differing"], rows["wrong", "loop"]["differing"]) == (1, 0)
    assert rows["quality", ""]["differing"] == 2  # item 9, and item 6 that Bob cannot judge
    asked = {row["item"]: row["questions"] for row in found["differing"]}
    by_position = {item.position: item.pk for item in queue.items.all()}
    assert asked[by_position[6]] == ["correct", "wrong", "quality"] and asked[by_position[7]] == ["wrong"]

    html = client.get(path).content.decode()
    assert "24 of 24 items have answers of two people." in html and "0.7654321" not in html and "0.77" not in html
    assert '<line class="usual"' in html and "Because of it." in html
    item = by_position[4]
    form = {"question": "correct", "take": "bob", "reason": "The last line.", "next": f"{path}?item={item}"}
    assert client.post(f"/queues/{queue.pk}/items/{item}/decide/", form)["Location"] == f"{path}?item={item}"
    decision = ItemDecision.objects.get()
    assert (decision.value, decision.reason, decision.user) == (False, "The last line.", lead)
    labels = Label.objects.active().filter(sample=queue.items.get(pk=item).sample, name="correct")
    assert {label.author: label.value for label in labels} == {"ann": True, "bob": False}
    stale = {"question": "correct", "take": "ann", "seen": ""}
    refused = client.post(f"/queues/{queue.pk}/items/{item}/decide/", stale, follow=True).content.decode()
    assert f"{lead.username} has decided this question since you opened the page." in refused
    assert ItemDecision.objects.get().value is False
    page = client.get(f"{path}?show=decided&item={item}").content.decode()
    [seen] = re.findall(r'name="seen" value="(2[^"]+)"', page)
    client.post(f"/queues/{queue.pk}/items/{item}/decide/", {**stale, "seen": html_module.unescape(seen)})
    assert ItemDecision.objects.get().value is True
    odd = {"question": "correct\0", "take": "ann\0", "reason": "\0none", "seen": "\0"}
    assert client.post(f"/queues/{queue.pk}/items/{by_position[7]}/decide/", odd).status_code == 303
    assert ItemDecision.objects.get(item=by_position[7]).reason == "none"
    ItemDecision.objects.get(item=by_position[7]).delete()
    new_decision = {"question": "quality", "q.quality": "4"}
    client.post(f"/queues/{queue.pk}/items/{by_position[9]}/decide/", new_decision)
    assert ItemDecision.objects.get(name="quality").value == 4
    decided = client.get(path + "?show=decided").content.decode()
    assert len(re.findall(r'<a href="[^"]*item=\d+[^>]*>\s*<span class="clip">', decided)) == 2
    assert f"{path}?show=decided&amp;item={item}#to-decide" in decided, "the page stays at the list"
    undone = {"question": "quality", "withdraw": "1"}
    client.post(f"/queues/{queue.pk}/items/{by_position[9]}/decide/", {**undone, "seen": html_module.unescape(seen)})
    assert ItemDecision.objects.get(name="quality").value == 4, "decided since the page was opened"
    client.post(f"/queues/{queue.pk}/items/{by_position[9]}/decide/", undone)
    assert not ItemDecision.objects.filter(name="quality").exists()
    api = ApiClient.with_token(lead, "annotate")
    undo = {"question": "correct", "value": None}
    assert api("POST", f"queues/{queue.pk}/items/{item}/decide/", undo).json()["value"] is None
    assert api("POST", f"queues/{queue.pk}/items/{item}/decide/", undo).status_code == 404
    refused = client.post(f"/queues/{queue.pk}/items/{item}/decide/", {"question": "correct"}, follow=True)
    assert "Take the answer of a person, or choose one." in refused.content.decode()


def test_none_of_several_choices_can_be_taken_and_decided(run: Run, lead: User, reviewers: list[User]) -> None:
    queue = queues.create_queue(run.project, lead, {"name": "check", "runs": [run], "num_reviewers_per_item": 2})
    item = queue.items.get(position=0)
    for user, chosen in zip(reviewers, (["hack"], list[str]()), strict=True):
        queues.submit_answers(item, user, {"correct": {"value": True}, "wrong": {"value": chosen}})
    client, path = sign_in(lead), f"/queues/{queue.pk}/agreement/"
    html = client.get(f"{path}?item={item.pk}").content.decode()
    assert 'name="take" value="ann" data-key="1"' in html and 'name="take" value="bob" data-key="2"' in html
    client.post(f"/queues/{queue.pk}/items/{item.pk}/decide/", {"question": "wrong", "take": "bob"})
    assert ItemDecision.objects.get().value == []
    assert "✓ none" in client.get(f"{path}?show=decided").content.decode()
    api = ApiClient.with_token(lead, "annotate")
    for value in (["loop"], list[str]()):
        decision = {"question": "wrong", "value": value}
        assert api("POST", f"queues/{queue.pk}/items/{item.pk}/decide/", decision).json()["value"] == value
    other = queue.items.get(position=1)
    queues.submit_answers(other, reviewers[1], {"review": {"value": "cannot-judge"}})
    for name, author in (("wrong", "bob"), ("wrong", "ann"), ("correct", "ann")):
        with pytest.raises(NotFoundError, match="has not answered"):
            queues.load_answer_of(other, name, author)


def test_a_queue_without_second_answers_says_so_and_annotators_are_refused(
    run: Run, lead: User, reviewers: list[User]
) -> None:
    queue = queues.create_queue(run.project, lead, {"name": "check", "runs": [run]})
    queues.submit_answers(queue.items.get(position=0), reviewers[0], {"correct": {"value": True}})
    html = sign_in(lead).get(f"/queues/{queue.pk}/agreement/").content.decode()
    assert f"Agreement needs items with 2 answers; 0 of {ITEMS} have them." in html
    assert "Create a queue with two answers per item" in html
    assert sign_in(reviewers[0]).get(f"/queues/{queue.pk}/agreement/").status_code == 403


@pytest.mark.parametrize("pairs", [None, 2])
def test_the_agreement_on_groups(run: Run, lead: User, reviewers: list[User], pairs: int | None) -> None:
    push(run, [{"response": f"a{n}", "group": "b", "index": n} for n in range(3)], step=2)
    settings = {"name": "order", "runs": [run], "unit": "group", "pairs_per_group": pairs, "q": "step:2"}
    queue = queues.create_queue(run.project, lead, {**settings, "num_reviewers_per_item": 2})
    item = queue.items.get()
    best, middle, last = (sample.pk for sample in queues.list_group_samples(item))
    for user, order in zip(reviewers, ([best, middle, last], [best, last, middle]), strict=True):
        shown = {row.sample: row.number for row in queues.load_item_content(item, user).responses}
        if not pairs:
            queues.store_order(item, user, [[sample] for sample in order])
            continue
        rank = {shown[sample]: place for place, sample in enumerate(order)}
        seen = queues.load_item_content(item, user).pairs
        answers = {queues.format_pair(*pair): "left" if rank[pair[0]] < rank[pair[1]] else "right" for pair in seen}
        queues.store_pairs(item, user, answers)
    client = Client()
    client.force_login(lead)
    assert f'href="/queues/{queue.pk}/agreement/"' in client.get(f"/queues/{queue.pk}/").content.decode()
    api = ApiClient.with_token(lead, "read")
    found = api("GET", f"queues/{queue.pk}/agreement/").json()["orders"]
    listed = api("GET", f"queues/{queue.pk}/items/").json()["results"][0]
    asked = 3 if not pairs else len({frozenset((row["left"], row["right"])) for row in listed["pairs"]["ann"]})
    differ = not pairs or any({row["left"], row["right"]} == {middle, last} for row in listed["pairs"]["ann"])
    assert found["percent"]["value"] == pytest.approx(1 - differ / asked)
    assert found["tau"]["value"] == pytest.approx(1 - 2 * differ / asked)
    if pairs:
        chosen = {row[row["better"]] for row in listed["pairs"]["ann"]}
        assert chosen <= {best, middle} and listed["samples"] == [best, middle, last]
    else:
        assert listed["order"] == {"ann": [[best], [middle], [last]], "bob": [[best], [last], [middle]]}
    html = sign_in(lead).get(f"/queues/{queue.pk}/agreement/").content.decode()
    assert "Kendall’s tau-b" in html and "values below 0 at 0" in html and "1 group</td>" in html
    assert ("1 &gt; 3 &gt; 2" if not pairs else "2 &lt; 3" if differ else "People gave the same answers") in html


@pytest.mark.parametrize("group", ["line\nbreak", "a//b"])
def test_groups_of_any_name_and_attempt_are_linked(run: Run, lead: User, reviewers: list[User], group: str) -> None:
    push(run, [{"response": f"a{n}", "group": group, "index": n} for n in range(2)], step=2, attempt="first")
    push(run, [{"response": f"b{n}", "group": group, "index": n} for n in range(2)], step=2, attempt="second")
    settings = {"name": "order", "runs": [run], "unit": "group", "q": "step:2", "num_reviewers_per_item": 2}
    item = queues.create_queue(run.project, lead, settings).items.get()
    samples = [sample.pk for sample in queues.list_group_samples(item)]
    queues.store_order(item, reviewers[0], [[sample] for sample in samples])
    queues.store_order(item, reviewers[1], [[sample] for sample in reversed(samples)])
    Step.objects.filter(pk=item.step_id).update(superseded=True)
    html = html_module.unescape(sign_in(lead).get(f"/queues/{item.queue_id}/agreement/").content.decode())
    link = re.search(rf'href="(/runs/{run.uid}/groups/2/[^"]*)"', html)
    assert link and f"attempt={item.step.attempt.key}" in link[1]
    assert "b0" in sign_in(lead).get(link[1]).content.decode()
