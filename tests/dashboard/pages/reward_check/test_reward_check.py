"""The reward of a run compared with what people say, as a page and in the API."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts import queues
from rollouts.errors import QueryLimitError
from rollouts.exports.signals import load_decisions
from rollouts.labels import Answer, load_rubric, save_rubric, store_labels
from rollouts.models import EvidenceItem, Project, QueueItem, Run, Sample
from rollouts.query import find_samples
from rollouts.reward_check import draws
from rollouts.reward_check.labelled import load_question_labels
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.support.query_rows import push
from tests.support import builders

QUESTIONS = [{"key": "correct", "title": "Is the answer correct?", "kind": "yes-no", "required": True}]


def create_run_with_samples(project: Project, name: str, hacks: int) -> Run:
    """100 samples in two steps: in each step 30 rewarded, of which `hacks` are wrong, and 20 not rewarded, of which 2
    are right."""
    run = builders.run(project, name)
    for step in (1, 2):
        rows = [
            {"response": f"{'wrong' if n < hacks or n >= 32 else 'right'} {n}", "score": float(n < 30), "group": str(n),
             "data_source": "gsm8k" if n % 2 else "zh", "rewards": {"format": n % 2 / 2}}
            for n in range(50)
        ]  # fmt: skip
        push(run, rows, step=step)
    return run


@pytest.fixture
def lead(project: Project) -> User:
    user = builders.member(project, "lena", "maintainer")
    save_rubric(project, user, QUESTIONS)
    return user


def answer_all(run: Run, lead: User, **settings: object) -> None:
    queue = queues.create_queue(
        run.project, lead, {"name": f"check {run.name} {settings.get('seed')}", "runs": [run], **settings}
    )
    tails = dict(Sample.objects.filter(step__run=run).values_list("pk", "tail"))
    answers = [
        Answer(sample, "correct", tails[sample].startswith("right"))
        for sample in QueueItem.objects.filter(queue=queue).values_list("sample", flat=True)
    ]
    store_labels(run, lead, answers)


def test_the_page_and_the_api_compare_people_with_the_reward(project: Project, lead: User) -> None:
    run, fixed = create_run_with_samples(project, "hack", 10), create_run_with_samples(project, "fixed", 1)
    client = Client()
    client.force_login(lead)
    path = f"/runs/{run.uid}/reward-check/"
    empty = client.get(path).content.decode()
    assert "No labels of “Is the answer correct?”" in empty and "selection=random&amp;count=100" in empty

    answer_all(run, lead)
    answer_all(fixed, lead, selection="random", count=25, per="step")
    api = ApiClient.with_token(lead, "read")
    found = api(
        "GET", f"runs/{run.uid}/reward-check/?question=correct&good=yes&threshold=0.5&against={fixed.uid}"
    ).json()
    cells = ("rewarded_good", "rewarded_bad", "unrewarded_good", "unrewarded_bad")
    assert [found[name]["labelled"] for name in cells] == [40, 20, 4, 36]
    assert [found[name]["share"]["value"] for name in cells] == pytest.approx([0.4, 0.2, 0.04, 0.36])
    assert found["precision"]["value"] == pytest.approx(2 / 3) and found["precision"]["low"] < 2 / 3
    assert (len(found["suspected_hacks"]), len(found["missed_good"])) == (20, 4)
    assert set(found["sources"]) == {"gsm8k", "zh"} and set(found["parts"]) == {"format"}
    change = found["changes"]["wrong_of_rewarded"]
    assert change["is_clear"] and change["change"]["value"] < -0.2
    assert [(side["name"], side["found"]) for side in found["sides"]] == [("hack", "1-2"), ("fixed", "1-2")]
    # 50 of 100 samples of the other run were drawn, each stands for two
    other = api("GET", f"runs/{fixed.uid}/reward-check/?threshold=0.5").json()
    assert (other["labelled"], other["population"]) == (50, pytest.approx(100))

    first = api("GET", f"runs/{run.uid}/reward-check/?threshold=0.5&steps=1").json()
    assert (first["labelled"], len(first["suspected_hacks"])) == (50, 10)
    page = client.get(
        path + f"?question=correct&good=yes&threshold=0.5&steps=1&than=2&against={fixed.uid}"
    ).content.decode()
    assert "Correct · acc=1 if logged, else score&gt;0" in page
    assert "all steps (1-2)" in client.get(f"{path}?against={fixed.uid}").content.decode()
    assert (
        'data-label="hack 1"' in page and 'data-label="fixed 2"' in page
    )  # shown on a phone instead of the table head
    assert "Before and after" in page and "20 labelled" in page and "label%3Acorrect+-label.correct%3Dyes" in page
    assert find_samples(run, q="score>=0.5 label:correct -label.correct=yes", reader=lead.pk).samples.count() == 20
    refused = client.get(path + "?threshold=high")
    assert refused.status_code == 400 and "The threshold must be a number." in refused.content.decode()
    typed = client.get(path + "?question=correct&good=no&threshold=0.5&steps=41:80&than=1-40").content.decode()
    assert "Give steps as 41-80." in typed and 'value="41:80"' in typed and 'value="1-40"' in typed
    assert typed.count('aria-invalid="true"') == 1 and "Correct the marked fields." in typed
    both = client.get(path + "?threshold=high&steps=41..&than=-1").content.decode()
    assert "The threshold must be a number. Give steps as 41-80.<" in both and both.count('aria-invalid="true"') == 3
    as_in_queries = api("GET", f"runs/{run.uid}/reward-check/?threshold=0.5&steps=1..2").json()
    assert as_in_queries["labelled"] == found["labelled"] == 100
    assert re.search(r'value="no" checked', typed) and "No labels of" not in typed
    save_rubric(project, lead, [*QUESTIONS, {"key": "quality", "title": "Quality", "kind": "rating"}])
    other = client.get(path + "?asked=correct&question=quality&good=yes&steps=41:80").content.decode()
    assert re.search(r'value="quality" selected', other), "the chosen question stays"


@pytest.mark.parametrize("scores", [(0.1, 0.1), (0.0, 0.1)])
def test_wrong_answers_that_the_rule_does_not_count_as_correct_are_no_hacks(
    project: Project, lead: User, scores: tuple[float, float]
) -> None:
    """No threshold separates right from wrong if all answers are wrong."""
    run = builders.run(project, "wrong")
    push(run, [{"response": f"wrong {n}", "score": scores[n % 2], "rewards": {"acc": 0.0}} for n in range(8)], step=1)
    answer_all(run, lead)
    found = ApiClient.with_token(lead, "read")("GET", f"runs/{run.uid}/reward-check/?question=correct&good=yes").json()
    assert found["best_threshold"] is None and found["threshold"] == 0.5
    assert found["rewarded_bad"]["labelled"] == 0 and found["suspected_hacks"] == []
    assert found["parts"]["acc"]["rewarded_bad"]["labelled"] == 0


def test_a_threshold_with_many_digits_stays_the_same_number_in_forms_and_links(project: Project, lead: User) -> None:
    run = builders.run(project, "thirds")
    texts = ("wrong", "wrong", "right", "right")
    rows = [{"response": f"{texts[n % 4]} {n}", "score": (n % 4) / 3, "group": str(n)} for n in range(60)]
    for step in (1, 2):
        push(run, rows, step=step)
    answer_all(run, lead)
    client = Client()
    client.force_login(lead)
    page = client.get(f"/runs/{run.uid}/reward-check/?steps=1&than=2").content.decode()
    assert re.search(r'name="threshold"[^>]* value="0\.6666666666666666"', page)
    links = re.findall(r'href="(/findings/add/[^"]*|/runs/[^/]+/reward-check/\?[^"]*)"', page)
    thresholds = [float(parse_qs(urlsplit(html.unescape(link)).query)["threshold"][0]) for link in links]
    assert thresholds == [2 / 3] * 3, "of both sides, and of the finding"


def test_a_queue_of_a_list_has_its_steps_and_no_sample_on_which_people_disagree(project: Project, lead: User) -> None:
    run = create_run_with_samples(project, "hack", 10)
    answer_all(run, lead)
    listed = list(find_samples(run, q="score>=0.5 step:1 -label.correct=yes", reader=lead.pk).samples)
    store_labels(run, builders.member(project, "ada", "annotator"), [Answer(listed[0].pk, "correct", True)])
    found = ApiClient.with_token(lead, "read")("GET", f"runs/{run.uid}/reward-check/?question=correct&steps=1").json()
    assert (found["undecided_samples"], found["labelled"]) == (1, 49)
    store_labels(run, builders.member(project, "ben", "annotator"), [Answer(listed[0].pk, "correct", True)])
    client = Client()
    client.force_login(lead)
    path = f"/runs/{run.uid}/reward-check/?question=correct&good=yes&threshold=0.5&steps=1-1"
    page = client.get(path).content.decode()
    links = re.findall(r'class="button small push" href="([^"]*)"', page)
    hacks, missed = (parse_qs(urlsplit(html.unescape(link)).query)["q"][0] for link in links)
    assert {row.pk for row in find_samples(run, q=hacks, reader=lead.pk).samples} == {row.pk for row in listed[1:]}
    assert find_samples(run, q=missed, reader=lead.pk).samples.count() == 2
    assert all(f"/samples/{row.pk}/" in page for row in listed[1:]) and f"/samples/{listed[0].pk}/" not in page


def test_samples_of_two_random_queues_are_weighted_once(project: Project, lead: User) -> None:
    run = create_run_with_samples(project, "hack", 10)
    answer_all(run, lead, selection="random", count=12, per="step", seed=1)
    answer_all(run, lead, selection="random", count=20, per="step", seed=2)
    answer_all(run, lead, selection="random", count=8, per="step", seed=3, q="score>=0.5")
    found = ApiClient.with_token(lead, "read")("GET", f"runs/{run.uid}/reward-check/?threshold=0.5").json()
    assert 24 + 40 - 24 < found["labelled"] < 24 + 40 + 16
    # the third queue is about 60 of the 100 samples; how many the two others drew of those is chance
    assert found["population"] == pytest.approx(100, rel=0.1)


def test_samples_that_match_the_queries_of_two_queues_count_once(project: Project, lead: User) -> None:
    run = create_run_with_samples(project, "hack", 10)
    answer_all(run, lead, seed=1)
    answer_all(run, lead, seed=2, q="score>=0.5")
    found = ApiClient.with_token(lead, "read")("GET", f"runs/{run.uid}/reward-check/?threshold=0.5").json()
    cells = ("rewarded_good", "rewarded_bad", "unrewarded_good", "unrewarded_bad")
    assert [found[name]["share"]["value"] for name in cells] == pytest.approx([0.4, 0.2, 0.04, 0.36])
    assert found["population"] == pytest.approx(100)


def test_a_query_for_labels_is_not_run_again_after_the_draw(project: Project, lead: User) -> None:
    """The queue has drawn samples without labels, and all of them have labels now."""
    run = create_run_with_samples(project, "hack", 10)
    answer_all(run, lead, seed=1, q="-label:correct score<0.5")
    answer_all(run, lead, selection="random", count=10, per="step", seed=2, q="score>=0.5")
    found = ApiClient.with_token(lead, "read")("GET", f"runs/{run.uid}/reward-check/?threshold=0.5").json()
    assert (found["labelled"], found["population"]) == (60, pytest.approx(100))


def test_items_of_a_superseded_step_are_not_counted_as_drawn(project: Project, lead: User) -> None:
    run = create_run_with_samples(project, "again", 10)
    answer_all(run, lead, selection="random", count=50)
    api = ApiClient.with_token(lead, "read")
    before = api("GET", f"runs/{run.uid}/reward-check/?threshold=0.5").json()
    assert (before["labelled"], before["population"]) == (50, pytest.approx(100))
    run.steps.filter(step=1).update(superseded=True)
    after = api("GET", f"runs/{run.uid}/reward-check/?threshold=0.5").json()
    assert after["population"] == pytest.approx(2 * after["labelled"]) and 0 < after["labelled"] < 50


def test_a_blind_reviewer_sees_no_reward_check_and_no_decision_in_an_export(project: Project, lead: User) -> None:
    run = create_run_with_samples(project, "hack", 10)
    answer_all(run, lead)
    blind = queues.create_queue(project, lead, {"name": "blind", "runs": [run], "is_blind": True})
    item = blind.items.first()
    assert item is not None
    queues.decide_answer(item, lead, "correct", False, "")
    ann = builders.member(project, "ann", "annotator")
    client = Client()
    client.force_login(ann)
    hidden = "Until it is closed, the reward check is hidden."
    page = client.get(f"/runs/{run.uid}/reward-check/")
    assert (
        page.status_code == 400 and hidden in page.content.decode() and "labelled samples" not in page.content.decode()
    )
    api = ApiClient.with_token(ann, "read")
    assert hidden in api("GET", f"runs/{run.uid}/reward-check/").json()["error"]["message"]
    assert load_decisions([item.sample], ann) == {}
    assert load_decisions([item.sample], lead) == {"correct": {item.sample: False}}
    queues.close_queue(blind, lead)
    assert client.get(f"/runs/{run.uid}/reward-check/").status_code == 200
    assert load_decisions([item.sample], ann) == {"correct": {item.sample: False}}


def test_hand_picked_samples_are_in_the_lists_and_in_no_estimate(project: Project, lead: User) -> None:
    run = create_run_with_samples(project, "hack", 10)
    answer_all(run, lead, selection="worst", count=40)
    found = ApiClient.with_token(lead, "read")("GET", f"runs/{run.uid}/reward-check/?threshold=0.5").json()
    assert (found["labelled"], found["hand_picked"], len(found["missed_good"])) == (0, 40, 4)
    assert found["precision"]["value"] is None and found["precision"]["reason"] == "few-samples"


def test_labels_of_a_queue_without_the_question_do_not_count_as_drawn(project: Project, lead: User) -> None:
    run = create_run_with_samples(project, "hack", 10)
    save_rubric(project, lead, [{**QUESTIONS[0], "key": "style"}])
    queue = queues.create_queue(project, lead, {"name": "style", "runs": [run], "selection": "random", "count": 40})
    save_rubric(project, lead, QUESTIONS)
    store_labels(
        run, lead, [Answer(sample, "correct", True) for sample in queue.items.values_list("sample", flat=True)]
    )
    found = ApiClient.with_token(lead, "read")("GET", f"runs/{run.uid}/reward-check/?threshold=0.5").json()
    assert (found["labelled"], found["hand_picked"]) == (0, 40)


def test_answers_to_an_earlier_version_of_the_question_are_not_wrong(project: Project, lead: User) -> None:
    run = create_run_with_samples(project, "hack", 10)
    samples = list(Sample.objects.filter(step__run=run, score=1.0).order_by("pk").values_list("pk", flat=True)[:4])
    options = [{"key": key, "title": key} for key in ("right", "wrong")]
    save_rubric(project, lead, [{"key": "correct", "title": "Correct?", "kind": "choice", "options": options}])
    store_labels(run, lead, [Answer(sample, "correct", "right") for sample in samples[:3]])
    save_rubric(project, lead, QUESTIONS)
    store_labels(run, lead, [Answer(samples[3], "correct", True)])
    found = ApiClient.with_token(lead, "read")("GET", f"runs/{run.uid}/reward-check/?threshold=0.5").json()
    assert (found["hand_picked"], found["suspected_hacks"], found["outdated_answers"]) == (1, [], 3)
    client = Client()
    client.force_login(lead)
    for steps in ("", "&steps=1&than=2"):
        page = client.get(f"/runs/{run.uid}/reward-check/?threshold=0.5{steps}").content.decode()
        assert "3 answers do not fit the question as it is now" in page


def test_a_person_who_chose_none_of_several_choices_has_answered(project: Project, lead: User) -> None:
    options = [{"key": key, "title": key} for key in ("rude", "long")]
    style = {"key": "style", "title": "What is bad?", "kind": "choices", "options": options}
    save_rubric(project, lead, [*QUESTIONS, style])
    run = builders.run(project, "style")
    push(run, [{"response": f"answer {n}"} for n in range(3)])
    queue = queues.create_queue(project, lead, {"name": "style", "runs": [run]})
    given: list[dict[str, Any]] = [
        {"correct": True, "style": ["rude"]},
        {"correct": True},
        {"review": "cannot-judge"},
    ]
    items = list(queue.items.order_by("position"))
    for item, answers in zip(items, given, strict=True):
        queues.submit_answers(item, lead, {name: {"value": value} for name, value in answers.items()})
    question = next(row for row in load_rubric(project).questions if row.key == "style")
    labels = load_question_labels(run, question)
    first, second, _last = (item.sample for item in items)
    assert labels.decide_options() == {
        "rude": {first: True, second: False},
        "long": {first: False, second: False},
    }
    assert {row.pk for row in labels.rows} == {first, second}


def test_before_and_after_is_saved_as_a_finding_whose_links_show_the_samples(project: Project, lead: User) -> None:
    before, after = create_run_with_samples(project, "before", 10), create_run_with_samples(project, "after", 1)
    for run in (before, after):
        answer_all(run, lead, selection="random", count=40, per="step")
    client = Client()
    client.force_login(lead)
    page = client.get(f"/runs/{before.uid}/reward-check/?threshold=0.5&steps=1-2&against={after.uid}").content.decode()
    (form_link,) = re.findall(r'href="(/findings/add/[^"]*)"', page)
    form = client.get(html.unescape(form_link)).content.decode()
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form))
    del fields["csrfmiddlewaretoken"]
    sent = {**fields, "title": "The new grader", "show": "rates"}
    assert client.post("/findings/add/", sent).status_code == 303
    item = EvidenceItem.objects.get()
    ann = builders.member(project, "ann", "annotator")
    api, reader = ApiClient.with_token(ann, "read"), Client()
    reader.force_login(ann)
    shown = reader.get(f"/findings/{item.finding_id}/").content.decode()
    blind = queues.create_queue(project, lead, {"name": "blind", "runs": [before], "is_blind": True})
    hidden = reader.get(f"/findings/{item.finding_id}/").content.decode()
    assert "right according to people" in shown and "right according to people" not in hidden
    assert "what others say is hidden" in hidden
    held = api("GET", f"findings/{item.finding_id}/").json()["exhibits"][0]["held"]
    assert held["hidden"] and set(held) == {"hidden", "runs", "split"}
    queues.close_queue(blind, lead)
    assert "rates" in api("GET", f"findings/{item.finding_id}/").json()["exhibits"][0]["held"]
    snapshot = item.shown
    rates = {(rate["title"], rate["detail"]): rate for rate in snapshot["rates"]}
    wrong = rates["wrong, of the rewarded", ""]
    assert wrong["first"]["value"] > 0.2 > wrong["second"]["value"] and wrong["is_clear"]
    said_no = rates["Is the answer correct?", "no"]
    assert said_no["first"]["low"] < said_no["first"]["value"] < said_no["first"]["high"]
    assert (said_no["first"]["size"], said_no["q"]) == (80, "label.correct=no")

    Sample.objects.filter(step__run=after).update(score=0.0)  # a finding shows the state at its creation
    shown = client.get(f"/findings/{item.finding_id}/").content.decode()
    assert "Before and after" in shown and "steps 1-2" in shown
    links = [html.unescape(link) for link in re.findall(r'href="(/runs/[^"]*)"', shown)]
    samples = [link for link in links if "/steps/all/" in link and "label.correct" in link]
    assert len(samples) == 4  # two answers, two sides
    for link in links:
        assert client.get(link).status_code == 200
    no = next(link for link in samples if before.uid in link and link.endswith("no"))
    q = parse_qs(urlsplit(no).query)["q"][0]
    assert find_samples(before, q=q).total == round(said_no["first"]["value"] * said_no["first"]["size"]) > 20

    api = ApiClient.with_token(lead, "read", "annotate")
    added = api(
        "POST", f"findings/{item.finding_id}/exhibits/",
        {"run": before.uid, "rates": {"threshold": "0.5", "steps": "1", "than": "2"}},
    )  # fmt: skip
    assert added.status_code == 201, added.content
    assert [side["steps"] for side in EvidenceItem.objects.last().shown["sides"]] == ["1", "2"]
    refused = api("POST", f"findings/{item.finding_id}/exhibits/", {"run": before.uid, "rates": {"steps": "1"}})
    assert refused.status_code == 400 and "than" in refused.content.decode()
    after.delete()
    assert client.get(f"/findings/{item.finding_id}/").status_code == 200


def test_a_search_that_reached_its_time_limit_is_an_error(
    project: Project, lead: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run_with_samples(project, "hack", 10)
    answer_all(run, lead, seed=1)
    answer_all(run, lead, seed=2, q='"right"')

    def stop(*_: Any, **__: Any) -> Any:
        raise QueryLimitError("The search used its 20 seconds.")

    monkeypatch.setattr(draws, "find_samples", stop)
    answer = ApiClient.with_token(lead, "read")("GET", f"runs/{run.uid}/reward-check/?threshold=0.5")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "query_limit")


def test_a_comparison_runs_each_query_of_its_queues_a_few_times(
    project: Project, lead: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_rubric(project, lead, [{**QUESTIONS[0], "key": key} for key in ("correct", "clear", "short", "kind")])
    run = create_run_with_samples(project, "hack", 10)
    answer_all(run, lead, seed=1)
    answer_all(run, lead, seed=2, q='"right"')
    asked: list[str] = []
    search = draws.find_samples
    monkeypatch.setattr(draws, "find_samples", lambda run, q, **more: asked.append(q) or search(run, q=q, **more))
    client = Client()
    client.force_login(lead)
    assert client.get(f"/runs/{run.uid}/reward-check/?question=correct&steps=1&than=2").status_code == 200
    assert asked.count('("right") step:1..2') == 3 and set(asked) == {"", '("right") step:1..2'}


def test_answers_with_removed_options_are_not_counted_as_no(project: Project, lead: User) -> None:
    run = create_run_with_samples(project, "hack", 10)
    samples = list(Sample.objects.filter(step__run=run).order_by("pk").values_list("pk", flat=True)[:30])
    for options, answered, value in (("ab", samples[:10], "a"), ("cd", samples[10:], "c")):
        rows = [{"key": key, "title": key} for key in options]
        save_rubric(project, lead, [{"key": "faults", "title": "Faults", "kind": "choices", "options": rows}])
        store_labels(run, lead, [Answer(sample, "faults", [value]) for sample in answered])
    [question] = load_rubric(project).questions
    found = load_question_labels(run, question).decide_options()["c"]
    assert set(found) == set(samples[10:]) and all(found.values())
