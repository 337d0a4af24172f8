"""Scores, labels, ranks and decisions determine which response is better."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts import queues
from rollouts.exports.signals import load_decisions
from rollouts.labels import Answer, save_rubric, store_labels
from rollouts.models import ItemDecision, Run, Sample
from rollouts.reward_check import load_labelled_run, parse_reward_question
from tests.rollouts.support.exports import export
from tests.rollouts.support.query_rows import push
from tests.support import builders

pytestmark = pytest.mark.django_db


def test_pairs_are_the_best_and_the_worst_of_a_group_and_the_rest_is_counted(run: Run, mate: User) -> None:
    rows, card = export(mate, f"run={run.uid}", layout="preferences")
    assert [(row["prompt"], row["chosen"], row["rejected"]) for row in rows] == [("p1", "best", "worst")]
    assert (rows[0]["score"], rows[0]["rejected_score"], rows[0]["step"], rows[0]["run"]) == (1.0, 0.0, 1, "grpo")
    assert "- pairs of identical texts: `1`" in card and "- samples whose prompt is of an evaluation: `3`" in card
    assert "- pairs that are equal, or closer than the margin: `1`" in card and "- samples read: `10`" in card
    every, _ = export(mate, f"run={run.uid}", layout="preferences", pairs="all", min_margin="0.5")
    assert [(row["chosen"], row["rejected"]) for row in every] == [("best", "worst")]
    reward, _ = export(mate, f"run={run.uid}", layout="reward", pairs="all", format="parquet")
    assert [(row["chosen"], row["rejected"], row["margin"]) for row in reward] == [
        ("best", "middle", 0.5), ("best", "worst", 1.0), ("middle", "worst", 0.5)
    ]  # fmt: skip


def test_labels_and_ranks_of_people_decide_which_response_is_better(
    run: Run, mate: User, owner: User, sample_ids: dict[str, str]
) -> None:
    store_labels(
        run, mate, [Answer(sample_ids["best"], "correct", False), Answer(sample_ids["worst"], "correct", True)]
    )
    rows, _ = export(mate, f"run={run.uid}", layout="preferences", signal="label", question="correct")
    assert [(row["chosen"], row["rejected"]) for row in rows] == [("worst", "best")]
    kto, card = export(mate, f"run={run.uid}", layout="kto", signal="label", format="parquet")
    assert {row["completion"]: row["label"] for row in kto} == {"best": False, "worst": True}
    assert "- samples without score, label or rank: `5`" in card and "- good: `yes`" in card
    places = {"middle": 1, "worst": 2, "best": 2}
    store_labels(run, mate, [Answer(sample_ids[text], "rank", place) for text, place in places.items()])
    ranked, _ = export(mate, f"run={run.uid}", layout="preferences", signal="rank", pairs="all")
    assert {(row["chosen"], row["rejected"]) for row in ranked} == {("middle", "best"), ("middle", "worst")}
    store_labels(run, owner, [Answer(sample_ids["best"], "rank", 1), Answer(sample_ids["middle"], "rank", 2)])
    split, card = export(mate, f"run={run.uid}", layout="preferences", signal="rank", pairs="all")
    assert {(row["chosen"], row["rejected"]) for row in split} == {("middle", "worst")}


def test_a_score_that_was_logged_as_float32_reaches_the_threshold_of_kto(run: Run, mate: User) -> None:
    scores = {"float32": 0.699999988079071, "lower": 0.69}
    push(run, [{"prompt": "p4", "response": text, "score": score} for text, score in scores.items()], step=2)
    rows, _card = export(mate, f"run={run.uid}", layout="kto", q="step:2", threshold="0.7")
    assert {row["completion"]: row["label"] for row in rows} == {"float32": True, "lower": False}


def test_a_person_who_ranks_a_group_and_compares_its_pairs_has_one_vote(
    run: Run, mate: User, owner: User, sample_ids: dict[str, str]
) -> None:
    better = Answer(sample_ids["middle"], "better-than", [sample_ids["worst"]])
    store_labels(run, mate, [Answer(sample_ids["middle"], "rank", 1), Answer(sample_ids["worst"], "rank", 2), better])
    store_labels(run, owner, [Answer(sample_ids["worst"], "rank", 1), Answer(sample_ids["middle"], "rank", 2)])
    rows, card = export(mate, f"run={run.uid}", layout="preferences", signal="rank")
    assert rows == [] and "- pairs that are equal, or closer than the margin: `1`" in card


@pytest.mark.parametrize("signal", ["label", "rank"])
def test_the_margin_is_that_of_the_scores_also_if_people_say_what_is_better(
    run: Run, mate: User, sample_ids: dict[str, str], signal: str
) -> None:
    places = {"middle": 1, "best": 2, "worst": 2}
    store_labels(run, mate, [Answer(sample_ids[text], "rank", place) for text, place in places.items()])
    store_labels(run, mate, [Answer(sample_ids[text], "correct", place == 1) for text, place in places.items()])

    def export_pairs(**options: str) -> tuple[list[tuple[Any, ...]], bool]:
        rows, card = export(mate, f"run={run.uid}", signal=signal, pairs="all", **options)
        return sorted((row["chosen"], row["rejected"], row.get("margin")) for row in rows), "- min_margin: `" in card

    assert export_pairs(layout="preferences") == ([("middle", "best", None), ("middle", "worst", None)], False)
    assert export_pairs(layout="preferences", min_margin="0.4") == ([("middle", "worst", None)], True)
    assert export_pairs(layout="reward") == ([("middle", "worst", 0.5)], True)


@pytest.mark.parametrize("signal", ["label", "rank"])
def test_the_best_and_the_worst_response_of_people_have_a_margin(run: Run, mate: User, signal: str) -> None:
    responses = {"good": None, "fair": 0.5, "top": 1.0, "poor": 0.5, "bad": None}
    scored = [{"response": text, "score": score} for text, score in responses.items()]
    push(run, [{"prompt": "p4", "group": "e", "index": at, **row} for at, row in enumerate(scored)], step=2)
    found = dict(Sample.objects.filter(step__run=run, step__step=2).values_list("tail", "pk"))
    for place, text in enumerate(responses, 1):
        store_labels(run, mate, [Answer(found[text], "rank", place), Answer(found[text], "correct", place <= 3)])
    rows, _card = export(mate, f"run={run.uid}", layout="reward", signal=signal)
    assert [(row["chosen"], row["rejected"], row["margin"]) for row in rows] == [("top", "poor", 0.5)]
    ranked, _card = export(mate, f"run={run.uid}", layout="preferences", signal=signal)
    best = ("good", "bad") if signal == "rank" else ("top", "poor")  # without a margin the scores decide only ties
    assert [(row["chosen"], row["rejected"]) for row in ranked] == [best]


def test_answers_to_a_question_that_had_another_kind_do_not_count(
    run: Run, mate: User, owner: User, sample_ids: dict[str, str]
) -> None:
    store_labels(
        run, mate, [Answer(sample_ids["best"], "correct", True), Answer(sample_ids["middle"], "correct", False)]
    )
    queue = queues.create_queue(run.project, owner, {"name": "check", "runs": [run], "q": "score>0.9"})
    ItemDecision.objects.create(item=queue.items.get(sample=sample_ids["best"]), name="correct", value=True, user=owner)
    options = [{"key": key, "title": key} for key in ("right", "wrong")]
    save_rubric(run.project, mate, [{"key": "correct", "title": "Right?", "kind": "choice", "options": options}])
    store_labels(run, owner, [Answer(sample_ids["middle"], "correct", "right")])

    def export_answers(file_format: str) -> dict[str, tuple[Any, int]]:
        rows, _card = export(mate, f"run={run.uid}", layout="samples", format=file_format)
        return {row["response"]: (row["label.correct"], row["people.correct"]) for row in rows}

    for file_format in ("jsonl", "parquet"):
        answers = export_answers(file_format)
        assert (answers["best"], answers["middle"]) == ((None, 0), ("right", 1))
    kto, _card = export(mate, f"run={run.uid}", layout="kto", signal="label")
    assert [(row["completion"], row["label"]) for row in kto] == [("middle", True)]
    question = parse_reward_question(run.project, "correct", [])
    assert load_labelled_run(run, question).answers == {sample_ids["middle"]: "right"}
    save_rubric(run.project, mate, [{"key": "correct", "title": "Right?", "kind": "rating"}])
    assert set(export_answers("jsonl").values()) == {(None, 0)}


def test_a_person_who_completed_an_item_and_chose_none_of_several_choices_has_answered(
    run: Run, mate: User, owner: User, sample_ids: dict[str, str]
) -> None:
    ann = builders.member(run.project, "ann", "annotator")
    settings = {"runs": [run], "q": "score>0.9"}
    open_queue = queues.create_queue(run.project, owner, {**settings, "name": "open", "num_reviewers_per_item": 3})
    item = open_queue.items.get(sample=sample_ids["best"])
    queues.submit_answers(item, mate, {"correct": {"value": True}, "wrong": {"value": ["hack"]}})
    for person in (owner, ann):
        queues.submit_answers(item, person, {"correct": {"value": True}})

    def export_answers(user: User) -> dict[str, tuple[Any, int]]:
        rows, _card = export(user, f"run={run.uid}", layout="samples")
        return {row["response"]: (row["label.wrong"], row["people.wrong"]) for row in rows}

    assert export_answers(mate) == dict.fromkeys(export_answers(mate), (None, 0)) | {"best": ([], 3)}
    queues.create_queue(run.project, owner, {**settings, "name": "blind", "is_blind": True})
    answers_of = {user.username: export_answers(user)["best"] for user in (mate, owner, ann)}
    assert answers_of == {mate.username: (["hack"], 1), owner.username: ([], 3), "ann": ([], 1)}


def test_corrections_of_models_are_not_used(run: Run, mate: User, sample_ids: dict[str, str]) -> None:
    store_labels(run, mate, [Answer(sample_ids["worst"], "correction", "mended")])
    judge = [
        Answer(sample_ids[text], "correction", "judged", source="model", author="judge") for text in ("worst", "middle")
    ]
    store_labels(run, mate, judge)
    rows, _ = export(mate, f"run={run.uid}", layout="sft", q="score<0.6")
    assert [row["completion"] for row in rows] == ["middle", "mended", "same"]


def test_the_later_of_two_decisions_counts(run: Run, mate: User, sample_ids: dict[str, str]) -> None:
    store_labels(run, mate, [Answer(sample_ids["best"], "correct", True)])
    both_queues = [queues.create_queue(run.project, mate, {"name": name, "runs": [run]}) for name in ("one", "two")]
    items = [queue.items.get(sample=sample_ids["best"]) for queue in both_queues]
    for item, value in zip(items, (True, True), strict=True):
        ItemDecision.objects.create(item=item, name="correct", value=value, user=mate)
    decision = items[0].decisions.get()
    decision.value = False
    decision.save()
    rows, _ = export(mate, f"run={run.uid}", layout="samples", q="score>0.9")
    assert next(row for row in rows if row["id"] == sample_ids["best"])["label.correct"] is False
    question = parse_reward_question(run.project, "correct", [])
    assert load_labelled_run(run, question).answers == {sample_ids["best"]: "no"}


def test_decisions_about_a_group_that_is_reviewed_blindly_are_not_exported(
    run: Run, mate: User, owner: User, sample_ids: dict[str, str]
) -> None:
    group = [sample_ids[text] for text in ("best", "middle", "worst")]
    open_queue = queues.create_queue(run.project, owner, {"name": "open", "runs": [run], "q": "group:a"})
    for item in open_queue.items.all():
        ItemDecision.objects.create(item=item, name="correct", value=True, user=owner)
    settings = {"name": "blind", "runs": [run], "q": "group:a", "unit": "group", "is_blind": True}
    blind = queues.create_queue(run.project, owner, settings)
    decided = {"correct": dict.fromkeys(group, True)}
    assert (load_decisions(group, mate), load_decisions(group, owner)) == ({}, decided)
    queues.close_queue(blind, owner)
    assert load_decisions(group, mate) == decided
