"""Exports as a user downloads them: what is in the ZIP file, what is left out, and that the bytes are the same."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User

from rollouts import queues
from rollouts.exports import Export, parse_options, stream_archive
from rollouts.exports.signals import load_decisions
from rollouts.exports.tables import iterate_samples
from rollouts.labels import Answer, save_rubric, store_labels
from rollouts.models import ItemDecision, Label, Project, Run, Sample
from rollouts.reward_check import load_labelled_run, parse_reward_question
from rollouts.samples import export_jsonl, load_body, to_json
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.support.push import indexed, line
from tests.rollouts.support.query_rows import push
from tests.support import builders

pytestmark = pytest.mark.django_db
QUESTIONS = [
    {"key": "correct", "title": "Right?", "kind": "yes-no"},
    {"key": "wrong", "title": "What is wrong?", "kind": "choices",
     "options": [{"key": "hack", "title": "hack"}, {"key": "step", "title": "step"}]},
]  # fmt: skip
LONG = " ".join(f"word{n}" for n in range(200))


@pytest.fixture
def run(project: Project, mate: User) -> Run:
    save_rubric(project, mate, QUESTIONS)
    run = builders.run(project, "grpo")
    push(
        run,
        [
            {"prompt": "p1", "response": "best", "score": 1.0, "group": "a", "index": 0},
            {"prompt": "p1", "response": "middle", "score": 0.5, "group": "a", "index": 1},
            {"prompt": "p1", "response": "worst", "score": 0.0, "group": "a", "index": 2},
            {"prompt": "p2", "response": "same", "score": 1.0, "group": "b", "index": 0},
            {"prompt": "p2", "response": "same", "score": 0.0, "group": "b", "index": 1},
            {"prompt": "p3", "response": f"{LONG} one", "score": 1.0, "group": "c", "index": 0},
            {"prompt": "p3", "response": f"{LONG} two", "score": 1.0, "group": "c", "index": 1},
            {"prompt": "held out", "response": "x", "score": 1.0, "group": "d", "index": 0},
            {"prompt": "held out", "response": "y", "score": 0.0, "group": "d", "index": 1},
        ],
    )
    push(run, [{"prompt": "held out", "response": "z", "score": 1.0}], split="eval")
    return run


@pytest.fixture
def ids(run: Run) -> dict[str, str]:
    return {tail: pk for pk, tail in Sample.objects.filter(step__run=run).values_list("pk", "tail")}


def export(user: User, query: str, **options: str) -> tuple[list[dict[str, Any]], str]:
    """The rows and the card."""
    archive = zipfile.ZipFile(io.BytesIO(download(user, query, **options)))
    data, card = archive.namelist()
    assert card == "README.md" and f"path: {data}" in archive.read(card).decode()
    content = archive.read(data)
    rows = pq.read_table(io.BytesIO(content)).to_pylist() if data.endswith(".parquet") else None
    return rows or [json.loads(line) for line in content.splitlines()], archive.read(card).decode()


def download(user: User, query: str, **options: str) -> bytes:
    parameters = "&".join(f"{name}={value}" for name, value in options.items())
    response = ApiClient.with_token(user, "read")("GET", f"exports/datasets/?{query}&{parameters}")
    assert response.status_code == 200, response.content

    async def read() -> bytes:
        return b"".join([chunk async for chunk in response.streaming_content])

    return async_to_sync(read)()


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
    run: Run, mate: User, owner: User, ids: dict[str, str]
) -> None:
    store_labels(run, mate, [Answer(ids["best"], "correct", False), Answer(ids["worst"], "correct", True)])
    rows, _ = export(mate, f"run={run.uid}", layout="preferences", signal="label", question="correct")
    assert [(row["chosen"], row["rejected"]) for row in rows] == [("worst", "best")]
    kto, card = export(mate, f"run={run.uid}", layout="kto", signal="label", format="parquet")
    assert {row["completion"]: row["label"] for row in kto} == {"best": False, "worst": True}
    assert "- samples without score, label or rank: `5`" in card and "- good: `yes`" in card
    places = {"middle": 1, "worst": 2, "best": 2}
    store_labels(run, mate, [Answer(ids[text], "rank", place) for text, place in places.items()])
    ranked, _ = export(mate, f"run={run.uid}", layout="preferences", signal="rank", pairs="all")
    assert {(row["chosen"], row["rejected"]) for row in ranked} == {("middle", "best"), ("middle", "worst")}
    store_labels(run, owner, [Answer(ids["best"], "rank", 1), Answer(ids["middle"], "rank", 2)])
    split, card = export(mate, f"run={run.uid}", layout="preferences", signal="rank", pairs="all")
    assert {(row["chosen"], row["rejected"]) for row in split} == {("middle", "worst")}


def test_a_person_who_ranks_a_group_and_compares_its_pairs_has_one_vote(
    run: Run, mate: User, owner: User, ids: dict[str, str]
) -> None:
    better = Answer(ids["middle"], "better-than", [ids["worst"]])
    store_labels(run, mate, [Answer(ids["middle"], "rank", 1), Answer(ids["worst"], "rank", 2), better])
    store_labels(run, owner, [Answer(ids["worst"], "rank", 1), Answer(ids["middle"], "rank", 2)])
    rows, card = export(mate, f"run={run.uid}", layout="preferences", signal="rank")
    assert rows == [] and "- pairs that are equal, or closer than the margin: `1`" in card


@pytest.mark.parametrize("signal", ["label", "rank"])
def test_the_margin_is_that_of_the_scores_also_if_people_say_what_is_better(
    run: Run, mate: User, ids: dict[str, str], signal: str
) -> None:
    places = {"middle": 1, "best": 2, "worst": 2}
    store_labels(run, mate, [Answer(ids[text], "rank", place) for text, place in places.items()])
    store_labels(run, mate, [Answer(ids[text], "correct", place == 1) for text, place in places.items()])

    def read(**options: str) -> tuple[list[tuple[Any, ...]], bool]:
        rows, card = export(mate, f"run={run.uid}", signal=signal, pairs="all", **options)
        return sorted((row["chosen"], row["rejected"], row.get("margin")) for row in rows), "- min_margin: `" in card

    assert read(layout="preferences") == ([("middle", "best", None), ("middle", "worst", None)], False)
    assert read(layout="preferences", min_margin="0.4") == ([("middle", "worst", None)], True)
    assert read(layout="reward") == ([("middle", "worst", 0.5)], True)


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
    run: Run, mate: User, owner: User, ids: dict[str, str]
) -> None:
    store_labels(run, mate, [Answer(ids["best"], "correct", True), Answer(ids["middle"], "correct", False)])
    queue = queues.create_queue(run.project, owner, {"name": "check", "runs": [run], "q": "score>0.9"})
    ItemDecision.objects.create(item=queue.items.get(sample=ids["best"]), name="correct", value=True, user=owner)
    options = [{"key": key, "title": key} for key in ("right", "wrong")]
    save_rubric(run.project, mate, [{"key": "correct", "title": "Right?", "kind": "choice", "options": options}])
    store_labels(run, owner, [Answer(ids["middle"], "correct", "right")])

    def read(file_format: str) -> dict[str, tuple[Any, int]]:
        rows, _card = export(mate, f"run={run.uid}", layout="samples", format=file_format)
        return {row["response"]: (row["label.correct"], row["people.correct"]) for row in rows}

    for file_format in ("jsonl", "parquet"):
        answers = read(file_format)
        assert (answers["best"], answers["middle"]) == ((None, 0), ("right", 1))
    kto, _card = export(mate, f"run={run.uid}", layout="kto", signal="label")
    assert [(row["completion"], row["label"]) for row in kto] == [("middle", True)]
    question = parse_reward_question(run.project, "correct", [])
    assert load_labelled_run(run, question).answers == {ids["middle"]: "right"}
    save_rubric(run.project, mate, [{"key": "correct", "title": "Right?", "kind": "rating"}])
    assert set(read("jsonl").values()) == {(None, 0)}


def test_sft_uses_corrections_and_leaves_out_near_duplicates_and_more_than_n_of_a_prompt(
    run: Run, mate: User, ids: dict[str, str]
) -> None:
    store_labels(run, mate, [Answer(ids["worst"], "correction", "mended")])
    rows, card = export(mate, f"run={run.uid}", layout="sft", drop_near_duplicates="true", max_per_prompt="2")
    assert [(row["completion"][:5], row["corrected"]) for row in rows] == [
        ("best", False), ("middl", False), ("same", False), ("word0", False)
    ]  # fmt: skip
    assert "- near-duplicates: `2`" in card and "- more rows of a prompt than allowed: `1`" in card
    rows, _ = export(mate, f"run={run.uid}", layout="sft", q="score<0.1")
    assert [(row["prompt"], row["completion"]) for row in rows] == [("p1", "mended"), ("p2", "same")]
    pairs, _ = export(mate, f"run={run.uid}", layout="preferences", q="score<0.1")
    assert [(row["chosen"], row["rejected"], row["corrected"]) for row in pairs] == [("mended", "worst", True)]


def test_conversations_have_messages_and_tools(project: Project, mate: User) -> None:
    call = {"id": "1", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "1+1?"}, {"type": "image_url", "image_url": {"url": ""}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": "2"},
    ]
    run = builders.run(project, "agent")
    rows = [{"messages": messages, "response": "2", "tools": [{"name": "add"}], "score": 1.0, "group": "g"}]
    rows.append(
        {**rows[0], "messages": [*messages[:-1], {"role": "assistant", "content": "3"}], "response": "3", "score": 0}
    )
    push(run, rows)
    for file_format in ("jsonl", "parquet"):
        sft, card = export(mate, f"run={run.uid}", layout="sft", format=file_format)
        assert [message["role"] for message in sft[0]["messages"]] == [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert sft[0]["messages"][1]["content"] == "1+1?" and json.loads(sft[0]["tools"]) == [{"name": "add"}]
        assert sft[0]["messages"][2]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a":1}'}
        assert "- images (their messages are there): `2`" in card
        (pair,), _ = export(mate, f"run={run.uid}", layout="preferences", format=file_format)
        assert [message["role"] for message in pair["prompt"]] == ["system", "user"]
        assert [side[-1]["content"] for side in (pair["chosen"], pair["rejected"])] == ["2", "3"]
    text, _ = export(mate, f"run={run.uid}", layout="kto", form="text")
    assert text[0]["completion"] == "2" and isinstance(text[0]["prompt"], str)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_exported_and_tells_answers_apart(project: Project, mate: User, key: str) -> None:
    run = builders.run(project, "thoughts")
    push(
        run,
        [
            {"prompt": "1+1?", "response": "2", "score": score, "group": "g",
             "messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2", key: thought}]}
            for thought, score in (("I count.", 1.0), ("I guess.", 0.0))
        ],
    )  # fmt: skip
    (pair,), _card = export(mate, f"run={run.uid}", layout="preferences")
    thoughts = [side[-1]["reasoning_content"] for side in (pair["chosen"], pair["rejected"])]
    assert thoughts == ["I count.", "I guess."]


def test_a_response_continues_the_answer_that_its_prompt_begins(project: Project, mate: User) -> None:
    run = builders.run(project, "begun")
    question = {"role": "user", "content": "1+1?"}
    part = {"type": "text", "text": "It is"}
    begun = (("It is", " 2."), ([part], " two."), ("<think>", "<think>Two.</think>2"), ("A", " pair: A"))
    for step, (content, response) in enumerate(begun, 1):
        prompt = [question, {"role": "assistant", "content": content}]
        push(run, [{"prompt": prompt, "response": response}], step=step)
    whole = [question, {"role": "assistant", "content": "2"}]
    push(run, [{"prompt": "Say 2", "messages": whole, "response": "2<|im_end|>"}], step=5)
    thought = [question, {"role": "assistant", "content": "B", "reasoning_content": "Hm."}]
    push(run, [{"prompt": "A or B", "messages": thought, "response": "<think>Hm.</think>\nB<|im_end|>"}], step=6)
    rows, _card = export(mate, f"run={run.uid}", layout="sft")
    answers = [row["messages"][-1]["content"] for row in rows[:4]]
    assert answers == ["It is 2.", "It is two.", "<think><think>Two.</think>2", "A pair: A"]
    assert [row["messages"] for row in rows[4:]] == [whole, thought]


@pytest.mark.parametrize("is_old", [False, True])
def test_half_a_surrogate_pair_and_nan_in_messages_are_replaced(
    project: Project, mate: User, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    if is_old:  # a body that an earlier version stored
        monkeypatch.setattr("rollouts.samples.parquet.to_stored_json", to_json)
    run = builders.run(project, "broken")
    answer = {"role": "assistant", "content": "2", "logprob": float("nan")}
    messages = [{"role": "user", "content": "1+1? \ud83d 数"}, answer]
    info = {"text": "\ud83d", "number": float("nan")}
    row = {"prompt": "1+1?", "response": "2", "messages": messages, "info": info}
    indexed(run, line(row), format="native")
    (sft,), _card = export(mate, f"run={run.uid}", layout="sft")
    assert sft["messages"][0]["content"] == "1+1? \ufffd 数"
    body = load_body(Sample.objects.get(step__run=run))
    assert body.messages == [{"role": "user", "content": "1+1? \ufffd 数"}, {**answer, "logprob": None}]
    full = orjson.loads(b"".join(export_jsonl(Sample.objects.filter(step__run=run))))  # which takes no broken JSON
    assert full["messages"] == body.messages and full["extras"]["info"] == {"text": "\ufffd", "number": None}


@pytest.mark.parametrize("layout", ["sft", "preferences", "kto"])
def test_the_first_sample_with_text_decides_the_columns_however_late_it_is(
    project: Project, mate: User, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollouts.exports.texts.BATCH_ROWS", 2)
    run = builders.run(project, "late")
    push(run, [{"prompt": "held out", "response": "z"}], split="eval")
    push(run, [{"prompt": "held out", "response": f"x{n}", "score": n, "group": "e"} for n in range(5)])
    question, answers = {"role": "user", "content": "1+1?"}, [{"role": "assistant", "content": text} for text in "23"]
    push(
        run,
        [
            {"prompt": "1+1?", "messages": [question, answer], "response": answer["content"], "group": "g", "score": n,
             "tools": [{"name": "add"}]}
            for n, answer in enumerate(answers)
        ],
        step=2,
    )  # fmt: skip
    rows, card = export(mate, f"run={run.uid}", layout=layout)
    texts = [row[name] for row in rows for name in ("messages", "completion", "chosen") if name in row]
    assert [text[-1] for text in texts] == (answers[1:] if layout == "preferences" else answers)
    assert all(json.loads(row["tools"]) == [{"name": "add"}] for row in rows)
    assert "- samples whose prompt is of an evaluation: `6`" in card


def test_pairs_are_of_last_turns_with_one_prompt(project: Project, mate: User) -> None:
    run = builders.run(project, "turns")
    turns = [("one", 1, "start"), ("one", 2, "after one"), ("two", 1, "start"), ("three", 1, "start")]
    push(
        run,
        [
            {"prompt": prompt, "response": f"{name} {turn}", "group": "g", "trajectory": name, "turn": turn,
             "score": {"one": 1.0, "two": 0.5, "three": 0.0}[name]}
            for name, turn, prompt in turns
        ],
    )  # fmt: skip
    assert Sample.objects.filter(step__run=run, final=False).count() == 1
    for layout in ("preferences", "reward"):
        rows, card = export(mate, f"run={run.uid}", layout=layout, pairs="all")
        assert [(row["prompt"], row["chosen"], row["rejected"]) for row in rows] == [("start", "two 1", "three 1")]
        assert "- turns before the last one of a trajectory: `1`" in card
        assert "- groups with nothing to compare: `1`" in card


def test_pairs_of_conversations_have_the_prompt_that_both_begin_with(project: Project, mate: User) -> None:
    run = builders.run(project, "users")
    first = [{"role": "system", "content": "help"}, {"role": "user", "content": "1+1?"}]

    def talk(*texts: str) -> list[dict[str, str]]:
        return [{"role": ("assistant", "user")[at % 2], "content": text} for at, text in enumerate(texts)]

    ends = [talk("2", "sure?", "yes"), talk("3", "no", "2"), talk("4", "no", "5")]
    push(
        run,
        [
            {"prompt": "1+1?", "response": end[-1]["content"], "score": 1.0 - at / 2, "group": "g", "index": at,
             "messages": [*first, *end]}
            for at, end in enumerate(ends)
        ],
    )  # fmt: skip
    rows, _card = export(mate, f"run={run.uid}", layout="preferences")
    assert [(row["prompt"], row["chosen"], row["rejected"]) for row in rows] == [(first, ends[0], ends[2])]
    rows, _card = export(mate, f"run={run.uid}", layout="preferences", pairs="all")
    assert {json.dumps(row["prompt"]) for row in rows} == {json.dumps(first)} and len(rows) == 3


def test_training_data_merges_what_two_dumps_recorded(project: Project, mate: User) -> None:
    run = builders.run(project, "twice")
    messages = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    row = {"prompt": "1+1?", "response": "2", "messages": messages, "score": 1.0, "group": "g"}
    push(run, [row])
    push(run, [{**row, "tools": [{"name": "add"}]}], source="other.jsonl")
    (sft,), _ = export(mate, f"run={run.uid}", layout="sft")
    assert json.loads(sft["tools"]) == [{"name": "add"}]


def test_texts_for_sft_are_in_the_order_of_groups_and_once(project: Project, mate: User) -> None:
    run = builders.run(project, "texts")
    rows: list[dict[str, Any]] = [
        {"prompt": "q", "response": 'löst\n"1"', "score": 0.25, "group": "b"},
        {"prompt": "p", "response": "", "score": None, "group": "a"},
    ]
    push(run, rows, step=2)
    push(run, [*rows, {"prompt": "p", "response": "old", "score": 1, "group": "a"}], step=1)
    push(run, rows, step=1, source="other.jsonl")  # the same samples in a second dump
    found, card = export(mate, f"run={run.uid}", layout="sft")
    assert [(row["step"], row["prompt"], row["completion"], row["score"]) for row in found] == [
        (1, "p", "", None), (1, "p", "old", 1.0), (1, "q", "löst\n\"1\"", 0.25),
        (2, "p", "", None), (2, "q", "löst\n\"1\"", 0.25),
    ]  # fmt: skip
    assert list(found[0]) == ["prompt", "completion", "id", "run", "step", "score", "corrected"]
    assert "- samples read: `5`" in card
    assert export(mate, f"run={run.uid}", layout="sft", format="parquet")[0] == found


@pytest.mark.parametrize("layout", ["sft", "kto"])
def test_a_text_that_has_moved_is_not_that_of_another_sample(
    run: Run, mate: User, ids: dict[str, str], layout: str
) -> None:
    """Retention moves rows while an export, which has read the places before, reads the texts."""
    best, worst = Sample.objects.get(pk=ids["best"]), Sample.objects.get(pk=ids["worst"])
    best.ordinal, worst.ordinal = worst.ordinal, best.ordinal
    Sample.objects.bulk_update([best, worst], ["ordinal"])
    rows, card = export(mate, f"run={run.uid}", layout=layout)
    assert [row["completion"] for row in rows][:3] == ["middle", "same", "same"]
    assert "- samples without text: `2`" in card


def test_files_in_the_archive_are_not_compressed(run: Run, mate: User) -> None:
    archive = zipfile.ZipFile(io.BytesIO(download(mate, f"run={run.uid}", layout="sft")))
    assert archive.testzip() is None
    assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}


@pytest.mark.parametrize("file_format", ["jsonl", "parquet", "csv"])
def test_tables_have_all_labels_wide_and_long_and_the_same_bytes_again(
    run: Run, mate: User, owner: User, ids: dict[str, str], file_format: str
) -> None:
    store_labels(run, mate, [Answer(ids["best"], "correct", True), Answer(ids["best"], "wrong", ["step", "hack"])])
    store_labels(run, owner, [Answer(ids["best"], "correct", True, rationale="checked")])
    first = download(mate, f"project={run.project.slug}", layout="samples", format=file_format)
    assert b"- run: `all that are not archived`" in zipfile.ZipFile(io.BytesIO(first)).read("README.md")
    assert first == download(mate, f"project={run.project.slug}", layout="samples", format=file_format)
    if file_format == "csv":
        text = zipfile.ZipFile(io.BytesIO(first)).read("data/samples.csv").decode()
        assert text.startswith("id,run,") and "label.correct,people.correct" in text and text.count("\r\n") == 11
        return
    rows, card = export(mate, f"run={run.uid}", layout="samples", format=file_format)
    wide = next(row for row in rows if row["response"] == "best")
    assert (wide["label.correct"], wide["people.correct"], wide["label.wrong"]) == (True, 2, ["hack", "step"])
    assert len(rows) == 10 and "- correct: `Right? (yes-no)`" in card
    queue = queues.create_queue(run.project, mate, {"name": "check", "runs": [run], "q": "score>0.9"})
    item = queue.items.get(sample=ids["best"])
    ItemDecision.objects.create(item=item, name="correct", value=False, user=mate)
    rows, _ = export(mate, f"run={run.uid}", layout="samples", format=file_format)
    assert next(row for row in rows if row["response"] == "best")["label.correct"] is False  # a lead's decision
    labels, _ = export(mate, f"run={run.uid}", layout="labels", ids="true", format=file_format)
    assert [(row["name"], json.loads(row["json_value"]), row["author"], row["rationale"]) for row in labels] == [
        ("correct", True, mate.username, ""), ("wrong", ["hack", "step"], mate.username, ""),
        ("correct", True, owner.username, "checked"),
    ]  # fmt: skip
    assert {row["sample"] for row in labels} == {ids["best"]}


@pytest.mark.parametrize("layout", ["samples", "labels"])
def test_a_stored_integer_of_more_than_64_bits_is_exported(
    run: Run, mate: User, ids: dict[str, str], layout: str
) -> None:
    save_rubric(run.project, mate, [{"key": "cost", "title": "Cost", "kind": "number"}])
    store_labels(run, mate, [Answer(ids["best"], "cost", 1e20)])
    Label.objects.filter(name="cost").update(value=10**20)  # as earlier versions stored it
    rows, _ = export(mate, f"run={run.uid}", layout=layout)
    row = next(row for row in rows if layout == "labels" or row["response"] == "best")
    if layout == "labels":
        assert row["json_value"] == str(10**20)
    else:
        (label,) = json.loads(row["labels"]) if isinstance(row["labels"], str) else row["labels"]
        assert label["value"] == row["label.cost"] == 1e20 and "T" in label["updated_at"]


def test_corrections_of_models_are_not_used(run: Run, mate: User, ids: dict[str, str]) -> None:
    store_labels(run, mate, [Answer(ids["worst"], "correction", "mended")])
    judge = [Answer(ids[text], "correction", "judged", source="model", author="judge") for text in ("worst", "middle")]
    store_labels(run, mate, judge)
    rows, _ = export(mate, f"run={run.uid}", layout="sft", q="score<0.6")
    assert [row["completion"] for row in rows] == ["middle", "mended", "same"]


def test_the_later_of_two_decisions_counts(run: Run, mate: User, ids: dict[str, str]) -> None:
    store_labels(run, mate, [Answer(ids["best"], "correct", True)])
    asked = [queues.create_queue(run.project, mate, {"name": name, "runs": [run]}) for name in ("one", "two")]
    items = [queue.items.get(sample=ids["best"]) for queue in asked]
    for item, value in zip(items, (True, True), strict=True):
        ItemDecision.objects.create(item=item, name="correct", value=value, user=mate)
    decision = items[0].decisions.get()
    decision.value = False
    decision.save()
    rows, _ = export(mate, f"run={run.uid}", layout="samples", q="score>0.9")
    assert next(row for row in rows if row["id"] == ids["best"])["label.correct"] is False
    question = parse_reward_question(run.project, "correct", [])
    assert load_labelled_run(run, question).answers == {ids["best"]: "no"}


def test_the_table_of_labels_tells_a_blind_reviewer_nothing_of_others(
    run: Run, mate: User, owner: User, ids: dict[str, str]
) -> None:
    store_labels(run, owner, [Answer(ids["best"], "correct", True), Answer(ids["middle"], "correct", True)])
    queues.create_queue(run.project, owner, {"name": "blind", "runs": [run], "q": "score>0.9", "is_blind": True})
    rows, card = export(mate, f"run={run.uid}", layout="labels", ids="true")
    assert [row["sample"] for row in rows] == [ids["middle"]] and "- samples read: `1`" in card


def test_decisions_about_a_group_that_is_reviewed_blindly_are_not_exported(
    run: Run, mate: User, owner: User, ids: dict[str, str]
) -> None:
    group = [ids[text] for text in ("best", "middle", "worst")]
    asked = queues.create_queue(run.project, owner, {"name": "open", "runs": [run], "q": "group:a"})
    for item in asked.items.all():
        ItemDecision.objects.create(item=item, name="correct", value=True, user=owner)
    settings = {"name": "blind", "runs": [run], "q": "group:a", "unit": "group", "is_blind": True}
    blind = queues.create_queue(run.project, owner, settings)
    decided = {"correct": dict.fromkeys(group, True)}
    assert (load_decisions(group, mate), load_decisions(group, owner)) == ({}, decided)
    queues.close_queue(blind, owner)
    assert load_decisions(group, mate) == decided


def test_a_rubric_that_is_saved_during_an_export_does_not_change_its_columns(
    run: Run, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = builders.run(run.project, "second")
    push(second, [{"prompt": "p", "response": "r"}])

    def iterate_and_save(*given: Any) -> Any:
        yield from iterate_samples(*given)
        save_rubric(run.project, mate, QUESTIONS[1:])

    monkeypatch.setattr("rollouts.exports.archive.iterate_samples", iterate_and_save)
    samples = [Sample.objects.current_and_visible().filter(step__run=row) for row in (run, second)]
    options = parse_options(run.project, {"layout": "samples", "format": "parquet"})
    stream = stream_archive(Export(run.project, options, samples, {}, "samples"))
    archive = zipfile.ZipFile(io.BytesIO(b"".join(stream)))
    table = pq.read_table(io.BytesIO(archive.read("data/samples.parquet")))
    assert table.num_rows == 11 and "label.correct" in table.column_names
    assert "## Rubric, version 1\n" in archive.read("README.md").decode() and run.project.rubrics.count() == 2


def test_bad_options_say_what_is_possible(run: Run, mate: User) -> None:
    api = ApiClient.with_token(mate, "read")
    for query, message in (
        ("", "Send `run` or `project`."),
        (f"run={run.uid}&layout=dpo", "`layout` must be one of"),
        (f"run={run.uid}&layout=kto&signal=rank", "A rank says which response is better"),
        (f"run={run.uid}&layout=kto&signal=label&question=x", "has no question `x`. Questions with one choice"),
        (f"run={run.uid}&layout=kto&signal=label&question=wrong", "`wrong` cannot say what is good"),
        (f"run={run.uid}&q=score>>", "score"),
    ):
        response = api("GET", f"exports/datasets/?{query}")
        assert response.status_code == 400 and message in response.json()["error"]["message"], query
