"""Lines of verl and of Rolloutdeck's native format, and the recognition of formats."""

from __future__ import annotations

import io
from typing import Any

import pytest

from rolloutdeck.protocol import wire
from rollouts.errors import UnreadableDumpError
from rollouts.formats import FORMATS, DumpContext, Format, native, select_format
from rollouts.formats.verl import jsonl as verl_jsonl
from rollouts.formats.verl import metrics as verl_metrics
from rollouts.samples.record import LineProblem, MetricPoint, Record, SkippedRow
from tests.rollouts.support.push import generation, lines
from tests.support.patching import patch_everywhere


def read_items(form: Format, body: bytes, split: str = "train", step: int | None = 1) -> list[Any]:
    return list(form.read(io.BytesIO(body), DumpContext("1.jsonl", split, step)))


def read_record(form: Format, body: bytes, **options: Any) -> Record:
    (record,) = read_items(form, body, **options)
    assert isinstance(record, Record)
    return record


def test_bare_nan_and_infinity_become_unknown_numbers() -> None:
    body = b'{"input":"q","output":"a","score":NaN,"step":1,"acc":-Infinity}\n'
    record = read_record(verl_jsonl, body)
    assert (record.score, record.rewards["acc"]) == (None, None)


def test_numbers_that_were_written_as_strings_are_numbers_again() -> None:
    body = lines(
        generation(acc="True", overlong_reward="-0.25", bonus=0.5, right="False"),
        generation(acc="False", overlong_reward="0.0", bonus="0.75", right="True"),
    )
    first, second = read_items(verl_jsonl, body)
    assert first.rewards == {"acc": 1.0, "overlong_reward": -0.25, "bonus": 0.5, "right": 0.0}
    assert second.rewards == {"acc": 0.0, "overlong_reward": 0.0, "bonus": 0.75, "right": 1.0}


def test_an_answer_that_looks_like_a_number_stays_text() -> None:
    records = read_items(verl_jsonl, lines(generation(pred="339"), generation(pred="72")))
    assert [record.extras["pred"] for record in records] == ["339", "72"]


@pytest.mark.parametrize("strange", ["\u2028", "\u2029", "\u0085", "\x0b", "\x1c", "\r"])
def test_an_unusual_line_end_inside_a_text_does_not_split_the_record(strange: str) -> None:
    record = read_record(verl_jsonl, lines(generation(response=f"a{strange}b")))
    assert record.response == f"a{strange}b"


@pytest.mark.parametrize("text", ["\x00", "\ufffd", "", "\ud83d", "👩🏽\u200d🔬"])
def test_any_text_is_kept_as_it_is(text: str) -> None:
    assert read_record(verl_jsonl, lines(generation(response=text))).response == text


def test_bytes_that_are_not_utf8_are_replaced_and_counted() -> None:
    problem, record = read_items(verl_jsonl, b'{"input":"q","output":"caf\xe9","score":1,"step":1}\n')
    assert problem.repaired and problem.line == 1
    assert record.response == "caf\ufffd"


def test_prompts_may_be_texts_and_message_lists_in_one_file() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "2+2?"}]}]
    text, messages = read_items(verl_jsonl, lines(generation(), generation() | {"input": chat}))
    assert (text.prompt, text.messages) == ("2+2?", None)
    assert (messages.prompt, messages.messages) == ("system\nBe brief.\nuser\n2+2?\nassistant\n", chat)


def test_a_bad_line_is_reported_and_the_good_ones_are_kept() -> None:
    body = lines(generation()) + b'{"input": "torn\n' + b"[1]\n\n" + lines({"step": 1}, generation(response="5"))
    items = read_items(verl_jsonl, body)
    assert [type(item) for item in items] == [Record, LineProblem, LineProblem, LineProblem, Record]
    assert [item.line for item in items if isinstance(item, LineProblem)] == [2, 3, 5]
    assert "not JSON" in items[1].reason and "a list" in items[2].reason and "`input`" in items[3].reason


def test_a_line_that_is_not_json_is_reported_with_its_position() -> None:
    _, unterminated, other = read_items(verl_jsonl, lines(generation()) + b'{"input": "torn\n' + b'{"a": }\n')
    assert unterminated.reason == "not JSON: Unterminated string starting at character 11"
    assert other.reason == "not JSON: Expecting value at character 7"


def test_padding_rows_are_left_out() -> None:
    pad = generation("", "", 0.0, uid="pad" + "0" * 32 + "_3_0")
    assert read_items(verl_jsonl, lines(generation(uid="u_0_0"), pad))[1] == SkippedRow("padding")


def test_a_uid_names_group_session_and_turn() -> None:
    record = read_record(verl_jsonl, lines(generation(uid="14a75144-a441_3_1")))
    assert (record.group, record.index, record.trajectory, record.turn) == ("14a75144-a441", 3, "14a75144-a441_3", 1)


def test_a_validation_file_is_grouped_by_the_order_of_the_dataset() -> None:
    prompts = ["a", "a", "b", "b", "b", "b", "a", "a"]  # the dataset has b twice in a row
    records = read_items(verl_jsonl, lines(*(generation(prompt) for prompt in prompts)), split="eval")
    assert [record.group for record in records] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert [record.index for record in records] == [0, 1] * 4


def test_responses_of_a_prompt_that_are_not_adjacent_get_no_group() -> None:
    records = read_items(verl_jsonl, lines(*(generation(prompt) for prompt in "abab")), split="eval")
    assert [record.group for record in records] == [None] * 4


def read_groups(prompts: list[str]) -> list[str | None]:
    records = read_items(verl_jsonl, lines(*(generation(prompt) for prompt in prompts)), split="eval")
    return [record.group for record in records]


def test_a_large_validation_file_is_grouped_by_its_whole_prompts() -> None:
    prompts = [f"q{row // 3}" for row in range(3 * 700)]  # the first 2,048 rows, read together, end within q682
    assert read_groups(prompts) == [str(row // 3) for row in range(len(prompts))]
    prompts = [f"q{row // 3000}" for row in range(6000)]
    assert read_groups(prompts) == [str(row // 3000) for row in range(len(prompts))]


def test_a_line_that_cannot_be_read_does_not_split_the_groups_of_a_validation_file() -> None:
    good = [lines(generation(f"q{row // 4}")) for row in range(12)]
    items = read_items(verl_jsonl, b"".join([*good[:5], b'{"input": "torn\n', *good[6:]]), split="eval")
    groups = [item.group for item in items if isinstance(item, Record)]
    assert groups == ["0"] * 4 + ["1"] * 3 + ["2"] * 4


def test_the_rows_of_a_shuffled_rollout_get_no_group() -> None:
    records = read_items(verl_jsonl, lines(*(generation(prompt) for prompt in "aabb")))
    assert [record.group for record in records] == [None] * 4


def test_the_trainers_sum_and_the_reward_functions_own_score_are_two_fields() -> None:
    row = {
        "input": "q",
        "output": "a",
        "gts": "4",
        "score": 1.0,
        "step": 1,
        "reward": 0.4,
        "acc": True,
        "overlong_reward": -0.6,
    }
    record = read_record(verl_jsonl, lines(row), split="eval")
    assert record.score == 0.4
    assert record.rewards == {"score": 1.0, "acc": 1.0, "overlong_reward": -0.6}


def test_ground_truth_may_be_anything() -> None:
    record = read_record(verl_jsonl, lines(generation() | {"gts": {"inputs": [1]}}))
    assert record.ground_truth == '{"inputs":[1]}'


def test_a_dict_among_the_reward_extras_is_kept_as_it_is() -> None:
    record = read_record(verl_jsonl, lines(generation(detail={"a": [1]}, acc=1)))
    assert (record.rewards, record.extras) == ({"acc": 1.0}, {"detail": {"a": [1]}})
    rows = read_items(verl_jsonl, lines(generation(acc=1), generation(acc={"a": 1}), generation(acc=[0.5])))
    assert [(row.rewards, row.extras) for row in rows] == [
        ({"acc": 1.0}, {}),
        ({}, {"acc": {"a": 1}}),
        ({}, {"acc": [0.5]}),
    ]


def test_a_key_with_numbers_and_words_keeps_both() -> None:
    rows = read_items(verl_jsonl, lines(generation(acc=1), generation(acc="0.5"), generation(acc="timeout")))
    assert [row.rewards for row in rows] == [{"acc": 1.0}, {"acc": 0.5}, {}]
    assert rows[2].extras == {"acc": "timeout"}


def test_a_line_over_the_limit_is_reported_and_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_everywhere(monkeypatch, wire, "MAX_LINE_BYTES", 1000)
    problem, record = read_items(verl_jsonl, lines(generation(response="x" * 5000), generation()))
    assert problem == LineProblem(1, "longer than 0 MiB")
    assert record.response == "4"


def test_a_line_of_ten_megabytes_is_read() -> None:
    assert len(read_record(verl_jsonl, lines(generation(response="x" * 10_000_000))).response) == 10_000_000


@pytest.mark.parametrize("body", [b"", b"\n \n", b"[1, 2]", b"null\n", b"\x80\x04\x95", b'{"a": 1}\n', b"PK\x03\x04"])
def test_a_file_that_is_no_dump_is_refused_with_one_sentence(body: bytes) -> None:
    with pytest.raises(UnreadableDumpError, match=r"^[^\n]+\.$"):
        select_format("x.bin", body)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("body", [b"", b"[1, 2]", b"not json", b"3\n4\n", b"[" * 100_000])
def test_a_file_of_another_format_than_given_is_refused_with_one_sentence(form: Format, body: bytes) -> None:
    with pytest.raises(UnreadableDumpError, match=r"^[^\n]+\.$"):
        read_items(form, body)


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(UnreadableDumpError, match="`slime-pt` is not a format"):
        select_format("1.pt", b"", "slime-pt")


def test_metrics_lines_are_points_and_nan_is_null() -> None:
    body = (
        b'{"step":1,"data":{"a":0.5,"b":null,"c":NaN,"d":true,"e":"text"}}\n{"step":1,"data":{"f":2}}\n{"step":"x"}\n'
    )
    point, other_point, problem = read_items(verl_metrics, body)
    assert point == MetricPoint(1, {"a": 0.5, "b": None, "c": None, "d": 1.0})
    assert other_point == MetricPoint(1, {"f": 2.0})
    assert problem.line == 3


def test_a_native_row_keeps_every_key() -> None:
    row = {
        "prompt": "q", "response": "a", "score": "0.5", "rewards": {"acc": True, "style": 0.2}, "group": 7, "index": 2,
        "trajectory": "t", "turn": 1, "ground_truth": 4, "data_source": "gsm8k", "finish_reason": "length",
        "truncated": 1, "response_ids": [1, 2], "response_mask": [True, False], "logprobs": [-0.5, None],
        "advantages": 0.25, "policy_version": 3.0, "timing": {"generate": 0.2}, "tools": [{}], "lang": "zh", "depth": 4,
    }  # fmt: skip
    record = read_record(native, lines(row))
    assert (record.score, record.rewards, record.group, record.ground_truth) == (
        0.5,
        {"acc": 1.0, "style": 0.2},
        "7",
        "4",
    )
    assert (record.truncated, record.response_mask, record.advantages) == (True, [1, 0], [0.25])
    assert (record.policy_version, record.logprobs) == (3, [-0.5, None])
    assert record.extras == {"lang": "zh", "depth": 4}


def test_a_native_value_of_a_wrong_type_is_kept_as_an_extra() -> None:
    row = {"prompt": "q", "response": "a", "score": [1], "rewards": 3, "response_ids": ["x"]}
    record, problem = read_items(native, lines(row))
    assert isinstance(record, Record) and isinstance(problem, LineProblem) and problem.repaired
    assert (record.score, record.rewards, record.response_ids) == (None, {}, None)
    assert record.extras == {"score": [1], "rewards": 3, "response_ids": ["x"]}


@pytest.mark.parametrize("nan", ["NaN", "-Infinity", '"nan"', '"-inf"'])
def test_a_native_score_that_is_nan_is_unknown(nan: str) -> None:
    record = read_record(native, f'{{"prompt":"q","response":"a","score":{nan},"lang":NaN}}\n'.encode())
    assert (record.score, record.extras) == (None, {"lang": None})


def test_native_and_verl_formats_are_recognised() -> None:
    assert select_format("", lines(generation())) is verl_jsonl
    assert select_format("", b'{"step":1,"data":{"a":1}}\n') is verl_metrics
    assert select_format("", lines({"prompt": "q", "response": "a"})) is native
    assert select_format("", lines({"score": 1, "input": "q", "step": 3, "output": "a"})) is verl_jsonl
