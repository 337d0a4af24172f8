"""tinker-cookbook: summaries of all rollouts, texts of some, and evaluations. Written by its own code: data/tinker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.formats import FORMATS
from rollouts.models import Run
from rollouts.samples.bodies import load_body
from rollouts.samples.record import LineProblem, SkippedRow
from tests.rollouts.support.push import index_file, list_samples
from tests.rollouts.support.trainer_dumps import DATA, read_items, read_records

TINKER = DATA / "tinker"
FORMS = {form.name: form for form in FORMATS}
ROLLOUTS, LOGTREE, EVAL = (FORMS[f"tinker-{name}"] for name in ("rollouts", "logtree", "eval"))
ITERATION = TINKER / "iteration_000000"
SUMMARIES, TEXTS = ITERATION / "train_rollout_summaries.jsonl", ITERATION / "train_logtree.json"
TRAJECTORIES = TINKER / "evals/checkpoint_000002/sums/trajectories.jsonl"


def node(tag: str, *children: Any, **more: Any) -> dict[str, Any]:
    return {"tag": tag, "attrs": {"class": "lt-root"} if tag == "body" else {}, "children": list(children), **more}


def section(title: str, *children: Any) -> dict[str, Any]:
    return node("section", node("h2", title), node("div", *children))


def conversation(*messages: dict[str, Any]) -> dict[str, Any]:
    return node("div", data={"type": "conversation", "messages": list(messages)})


def table(**values: Any) -> dict[str, Any]:
    body = [node("tr", node("td", name), node("td", str(value))) for name, value in values.items()]
    return node("table", node("thead"), node("tbody", *body))


def logged_rollout(text: str, reward: str | None) -> list[dict[str, Any]]:
    reward_sections = [section("Reward", table(reward=reward))] if reward is not None else []
    prompt = section("Prompt", conversation({"role": "user", "content": "2+2?"}))
    return [prompt, section("Policy Response", conversation({"role": "assistant", "content": text})), *reward_sections]


def trajectory(index: int, length: int, reward: str) -> dict[str, Any]:
    turn = section("Turn 1", table(ob_len=9, ac_len=length, step_reward=reward))
    totals = table(num_turns=1, final_group_reward="0.000", total_return=reward)
    return section(f"Trajectory {index} Episode", section("Episode Details", turn, totals))


def encode_document(*children: Any) -> bytes:
    return json.dumps({"title": "t", "root": node("body", section("Group Rollout", *children))}).encode()


def read_answers(body: bytes) -> dict[int | None, tuple[str, float | None]]:
    return {record.index: (record.response, record.score) for record in read_records(LOGTREE, body)}


@pytest.mark.django_db
def test_texts_join_their_summaries_and_all_other_rollouts_are_samples_too(run: Run) -> None:
    for path in (TEXTS, SUMMARIES):
        index_file(run, path.read_bytes(), 0, source=path.name)
    written = [json.loads(line) for line in SUMMARIES.read_bytes().splitlines()]
    samples = list_samples(run)
    assert sorted(sample.score for sample in samples) == pytest.approx(sorted(row["total_reward"] for row in written))
    with_text = {sample.tail: sample.score for sample in samples if sample.tail}
    assert with_text == {"I think 5.": 0.0, "4": pytest.approx(0.9)}
    assert {sample.data_source for sample in samples} == {"sums", "guess"}
    assert len({sample.group for sample in samples}) == 3


@pytest.mark.django_db
def test_the_order_of_arrival_does_not_matter_and_a_sample_has_the_values_of_both_files(run: Run) -> None:
    for path in (SUMMARIES, TEXTS):
        index_file(run, path.read_bytes(), 0, source=path.name)
    (sample,) = (sample for sample in list_samples(run) if sample.tail == "4")
    body = load_body(sample)
    assert (len(list_samples(run)), body.policy_version, body.ground_truth) == (6, 0, "4")
    assert body.extras["steps"][0]["ac_len"] == body.extras["lengths"]["response"] == 8


def test_summaries_hold_what_the_trainer_wrote() -> None:
    written = [json.loads(line) for line in SUMMARIES.read_bytes().splitlines()]
    records = read_records(ROLLOUTS, SUMMARIES.read_bytes(), step=0)
    assert [(item.score, item.index, item.extras["steps"]) for item in records] == [
        (row["total_reward"], row["traj_idx"], row["steps"]) for row in written
    ]
    assert all(item.textless for item in records)
    two_turns = records[3]
    assert (two_turns.rewards["right"], two_turns.rewards["by_group"], two_turns.extras["final_reward"]) == (1, 1, 0.25)
    assert two_turns.extras["steps"][0]["logs"] == {"guess": two_turns.extras["steps"][0]["logs"]["guess"]}


def test_a_text_gets_the_trajectory_with_its_reward_in_any_order() -> None:
    logged = [*logged_rollout("wrong", "0.000"), *logged_rollout("right", "1.000")]
    details = section("Trajectory Details", trajectory(0, 3, "1.000"), trajectory(1, 2, "0.000"))
    assert read_answers(encode_document(*logged, details)) == {0: ("right", 1.0), 1: ("wrong", 0.0)}


def test_of_texts_with_the_same_reward_the_longest_gets_the_most_tokens() -> None:
    logged = [
        *logged_rollout("a long text", "1.000"),
        *logged_rollout("short", "1.000"),
        *logged_rollout("no", "0.000"),
    ]
    details = section(
        "Trajectory Details", *(trajectory(*each) for each in ((0, 2, "1.000"), (1, 9, "1.000"), (2, 5, "0.000")))
    )
    assert read_answers(encode_document(*logged, details)) == {
        0: ("short", 1.0),
        1: ("a long text", 1.0),
        2: ("no", 0.0),
    }


def test_a_text_without_its_reward_is_skipped_and_counted_if_rewards_differ() -> None:
    """As with graders that run at the same time."""
    logged = [
        *logged_rollout("a", None),
        *logged_rollout("b", None),
        section("Reward Terms", table(total_reward="1.000")),
    ]
    details = section("Trajectory Details", trajectory(0, 3, "1.000"), trajectory(1, 2, "0.000"))
    skipped, record = read_items(LOGTREE, encode_document(*logged, details))
    assert isinstance(skipped, SkippedRow) and "cannot be assigned" in skipped.reason
    assert (record.response, record.score) == ("b", 1.0)
    same = section("Trajectory Details", trajectory(0, 3, "0.500"), trajectory(1, 2, "0.500"))
    assert {score for _, score in read_answers(encode_document(*logged, same)).values()} == {0.5}


def test_completions_of_preference_environments_have_their_index() -> None:
    texts = [section(f"Completion {at}", conversation({"role": "assistant", "content": f"c{at}"})) for at in (0, 1)]
    prompt = section("Prompt", conversation({"role": "user", "content": "q"}))
    details = section("Trajectory Details", trajectory(0, 3, "-1.000"), trajectory(1, 3, "1.000"))
    assert read_answers(encode_document(section("compute_group_rewards", prompt, *texts), details)) == {
        0: ("c0", -1.0),
        1: ("c1", 1.0),
    }


def test_paragraphs_with_a_problem_and_a_response_are_one_sample() -> None:
    texts = ("Problem: sort &lt;list&gt;", "Response: sorted(x)", "Format Valid: ✓, Correct: ✓, Reward: 1.00")
    details = section("Trajectory Details", trajectory(0, 3, "1.000"), trajectory(1, 3, "0.000"))
    (record,) = read_records(LOGTREE, encode_document(*(node("p", text) for text in texts), details))
    assert (record.prompt, record.response, record.score, record.index) == (
        "user\nsort <list>\nassistant\n", "sorted(x)", 1.0, 0,
    )  # fmt: skip


def test_thoughts_and_tool_calls_of_an_answer_are_shown() -> None:
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "4"}]
    call = {"function": {"name": "add", "arguments": "{}"}}
    answer = {"role": "assistant", "content": parts, "tool_calls": [call]}
    prompt = section("Prompt", conversation({"role": "user", "content": "q"}))
    (record,) = read_records(LOGTREE, encode_document(prompt, section("Policy Response", conversation(answer))))
    assert record.response == '<think>\nhm\n</think>\n4\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    assert record.trajectory is None  # its group failed


def test_groups_with_the_same_values_are_distinguished_in_both_files() -> None:
    details = section("Trajectory Details", trajectory(0, 3, "1.000"))
    group = section("Group Rollout", *logged_rollout("a", "1.000"), details)
    body = json.dumps({"root": node("body", group, group)}).encode()
    step = {"step_idx": 0, "ob_len": 9, "ac_len": 3, "reward": 1.0, "metrics": {}}
    summary = {
        "schema_version": 1,
        "split": "train",
        "iteration": 0,
        "traj_idx": 0,
        "final_reward": 0.0,
        "steps": [step],
    }
    lines = b"".join(json.dumps({**summary, "group_idx": at}).encode() + b"\n" for at in (0, 1))
    names = [item.trajectory for item in read_records(ROLLOUTS, lines)]
    assert names == [item.trajectory for item in read_records(LOGTREE, body)] and len(set(names)) == 2


@pytest.mark.parametrize("body", [b"[]", b'{"root": []}', b"{", b'{"root": 5}'])
def test_a_file_that_is_no_log_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableDumpError):
        read_items(LOGTREE, body)


def test_a_very_deep_tree_without_a_rollout_is_skipped() -> None:
    deep: Any = "end"
    for _ in range(400):
        deep = node("div", deep)
    assert read_items(LOGTREE, encode_document(deep)) == [SkippedRow("a log without a rollout")]


def test_an_evaluation_is_read_turn_by_turn_without_the_repeated_conversation() -> None:
    records = read_records(EVAL, TRAJECTORIES.read_bytes(), step=2)
    written = [json.loads(line) for line in TRAJECTORIES.read_bytes().splitlines()]
    assert [(item.score, item.group, item.data_source) for item in records] == [
        (row["reward"], row["example_id"], row["benchmark"]) for row in written
    ]
    assert records[0].prompt == written[0]["turns"][0]["content"]
    assert records[0].response == "4\n\nUser:\nenvironment\nwrong\n\nAssistant:\nassistant\nno idea\n\nUser:"
    assert records[0].messages and len(records[0].messages) == 4


def test_an_example_that_failed_is_skipped_and_counted() -> None:
    row = {"idx": 0, "benchmark": "b", "example_id": "e", "turns": [], "reward": 0.0, "error": "timeout (300s)"}
    assert read_items(EVAL, json.dumps(row).encode()) == [
        SkippedRow("an example that failed before the model answered")
    ]
    problem, *_ = read_items(EVAL, b'{"idx": 0, "benchmark": "b"}\n')
    assert isinstance(problem, LineProblem)


def test_an_evaluation_that_hit_a_limit_is_truncated() -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    row = {"idx": 0, "benchmark": "b", "turns": turns, "reward": 0.0, "metrics": {"max_tokens_reached": 1.0}}
    (record,) = read_records(EVAL, json.dumps(row).encode(), step=None)
    assert (record.truncated, record.extras["step"]) == (True, 0)
