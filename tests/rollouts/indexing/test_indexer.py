"""The samples, metrics and statistics of an indexed dump, and indexing it again."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from rollouts.indexing import indexer, outdated, reading
from rollouts.indexing.outdated import update_outdated_steps
from rollouts.maintenance import compaction
from rollouts.metrics import series
from rollouts.models import Dump, MetricRow, Run, Sample, Segment, Step
from rollouts.query import find_samples
from rollouts.samples import bodies, export_jsonl
from tests.rollouts.real_dumps import DUMPS, list_dumps
from tests.rollouts.support.push import generation, index_file, lines, list_samples
from tests.support.stored import list_stored

pytestmark = pytest.mark.django_db


def test_every_real_dump_gives_the_rows_it_holds(run: Run) -> None:
    for path in (path for path in list_dumps() if DUMPS / "verl_jsonl" in path.parents):
        split = "eval" if path.parent.name == "val" else "train"
        step = int(path.stem) if path.stem.isdigit() else None
        attempt = str(path.parent.relative_to(DUMPS))
        dump = index_file(run, path.read_bytes(), step, split=split, attempt=attempt)
        assert (dump.state, dump.left_out) == (Dump.State.INDEXED, {})
        assert dump.rows == (path.read_bytes().count(b"\n") if step is None else 32)  # lines of metrics, or samples
    assert Sample.objects.count() == 32 * 18
    assert MetricRow.objects.count() == 8
    assert set(Step.objects.filter(split="eval").values_list("groups", flat=True)) == {16}
    assert set(Step.objects.filter(split="train").values_list("groups", flat=True)) == {8}


def test_the_figures_of_a_step_come_from_its_samples(run: Run) -> None:
    body = lines(
        generation("a", "Answer: 1", 1.0, acc=True), generation("a", "Answer: 2", 0.0, acc=False),
        generation("b", "Answer: 3", 0.5, acc=False), generation("b", "Answer: 3", 0.5, acc=False),
    )  # fmt: skip
    index_file(run, body)
    step = Step.objects.get()
    assert (step.samples, step.trajectories, step.groups, step.zero_variance_groups) == (4, 4, 2, 1)
    assert (step.score_mean, step.score_min, step.score_max) == (0.5, 0.0, 1.0)
    assert step.score_std == pytest.approx(0.3535533905932738)
    assert (step.truncated, step.length_mean) == (None, 9.0)
    assert step.histogram["counts"] == [0, 1, 0, 2, 1]
    assert step.facets == {"duplicate": 2, "judged": 4, "correct": 1, "solve-all": 0, "solve-none": 1}


def test_a_score_too_large_for_a_mean_is_kept_but_not_counted(run: Run) -> None:
    index_file(run, lines(generation("a", "huge", 1e305), generation("a", "usual", 0.5)))
    huge = Sample.objects.get(tail="huge")
    assert (huge.score, bodies.load_bodies([huge])[huge.pk].score) == (None, 1e305)
    assert Step.objects.get().score_mean == 0.5


def test_a_trajectory_counts_once_by_its_last_sample(run: Run) -> None:
    body = lines(
        generation("a", "turn 1", 0.0, uid="u_0_0"), generation("a then", "turn 2", 1.0, uid="u_0_1"),
        generation("a", "one turn", 0.0, uid="u_1_0"),
    )  # fmt: skip
    index_file(run, body)
    step = Step.objects.get()
    assert (step.samples, step.trajectories, step.groups, step.score_mean) == (3, 2, 1, 0.5)
    assert [row.final for row in list_samples(run)] == [False, True, True]
    assert step.facets["intermediate"] == 1


def test_padding_and_bad_lines_are_counted_on_the_dump(run: Run) -> None:
    pad = generation("", "", uid="pad" + "0" * 32 + "_0_0")
    dump = index_file(run, lines(generation(uid="u_0_0"), pad, pad) + b"torn\n" + b'{"input":"q","output":"\xff"}\n')
    assert dump.left_out == {"padding": 2, "bad line": 1, "mended line": 1}
    assert [problem[0] for problem in dump.problems] == [4, 5]
    assert dump.rows == Step.objects.get().samples == 2


@pytest.mark.parametrize("value", ["high", [1], {"a": 1}])
def test_a_score_that_is_no_number_is_reported(run: Run, value: object) -> None:
    dump = index_file(
        run, lines(generation("a", "b", 1), generation("a", "c", value), generation("a", "d", float("nan")))
    )
    assert dump.left_out == {"mended line": 1} and dump.rows == 3
    ((line, reason),) = dump.problems
    assert (
        line == 2
        and reason.startswith("`score` is ")
        and reason.endswith(", not a finite number, so the sample has no score")
    )


@pytest.mark.parametrize("text", ["\x00", "\ud83d", "a\u2028b", "", "\ufffd" * 300, "👩" * 300])
def test_any_text_can_be_indexed_and_read_back(run: Run, text: str) -> None:
    index_file(run, lines(generation(text, text, data_source=text, uid=f"{text}_0_0") | {"gts": text}))
    (sample,) = list_samples(run)
    body = bodies.load_bodies([sample])[sample.id]
    rendered = text.replace("\ud83d", "\ufffd")
    assert (body.prompt, body.response, body.ground_truth) == (rendered, rendered, rendered)
    assert "\x00" not in sample.tail + sample.expected + sample.data_source + sample.group


def test_a_key_may_have_values_of_different_types(run: Run) -> None:
    values: list[Any] = [3, 0.5, "x", [1, {"a": None}], {"b": 2}, True, 10**17]
    for step, value in enumerate(values):
        index_file(run, lines({"prompt": "q", "response": "a", "lang": value}), step)
    index_file(run, lines(*({"prompt": "q", "response": str(i), "lang": value} for i, value in enumerate(values))), 99)
    loaded = bodies.load_bodies(list_samples(run))
    assert [loaded[sample.id].extras["lang"] for sample in list_samples(run)] == [*values, *values]


def test_keys_of_later_rows_and_very_many_keys_are_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_ROWS", 1)
    many = {f"k{i}": i for i in range(500)}
    index_file(
        run, lines(generation("a", "1"), generation("a", "2", late="yes", acc=1.0), generation("a", "3", **many))
    )
    first, second, third = [bodies.load_bodies([sample])[sample.id] for sample in list_samples(run)]
    assert (first.rewards, second.rewards, second.extras) == ({}, {"acc": 1.0}, {"late": "yes"})
    assert third.rewards == many


def test_a_body_has_every_field_that_was_logged(run: Run) -> None:
    row = {
        "prompt": [{"role": "user", "content": "q"}], "response": "a", "score": 0.5, "rewards": {"acc": 1.0},
        "group": "g", "index": 2, "trajectory": "t", "turn": 1, "ground_truth": "4", "data_source": "s",
        "finish_reason": "length",
        "truncated": True, "prompt_ids": [5], "response_ids": [1, 2], "response_mask": [1, 0], "logprobs": [-0.5, None],
        "ref_logprobs": [-1.0, 0.0], "advantages": [0.5, 1.0], "policy_version": 3, "timing": {"s": 0.2},
        "metrics": {"m": 1}, "segments": [{"role": "user"}], "tools": [{"name": "t"}],
    }  # fmt: skip
    dump = index_file(run, lines(row))
    (sample,) = list_samples(run)
    body = bodies.load_bodies([sample])[sample.id]
    assert {key: getattr(body, key) for key in row if key != "prompt"} == {
        key: row[key] for key in row if key != "prompt"
    }
    assert (body.messages, body.prompt, body.source_dumps) == (row["prompt"], "user\nq\nassistant\n", [dump])
    assert (sample.tokens, sample.advantage, sample.truncated, sample.correct) == (2, 0.75, True, True)


def test_any_one_of_many_samples_is_read_alone(run: Run) -> None:
    index_file(run, lines(*(generation(f"p{i // 8}", f"response {i}") for i in range(1000))))
    samples = list_samples(run)
    for position in (0, 127, 128, 640, 999):
        sample = samples[position]
        assert bodies.load_bodies([sample])[sample.id].response == f"response {position}"


def test_a_step_that_the_upload_does_not_name_is_read_from_the_rows(run: Run) -> None:
    assert index_file(run, lines(generation(step=7)), None).step == Step.objects.get().step == 7


def test_a_reindex_keeps_all_ids_and_keeps_the_old_body_file_for_an_hour(
    run: Run, django_capture_on_commit_callbacks: Callable[..., AbstractContextManager[Any]]
) -> None:
    dump = index_file(run, lines(generation(), generation(), generation("b", "")))
    (old,) = list_stored("bodies/")
    old.set_age(1e6)
    before = [sample.id for sample in list_samples(run)]
    assert indexer.reindex_run(run) == 1
    with django_capture_on_commit_callbacks(execute=True):
        indexer.index_dump(dump.pk)
    assert [sample.id for sample in list_samples(run)] == before
    assert old.exists() and compaction.delete_orphan_bodies() == 0
    old.set_age(4000)
    assert compaction.delete_orphan_bodies() == 1
    assert len(list_stored("bodies/")) == Segment.objects.count() == 1


def test_a_reindex_reads_metrics_again_only_where_they_failed(run: Run) -> None:
    read = index_file(run, b'{"step":1,"data":{"loss":0.5}}\n', None, split="train")
    failed = index_file(run, b'{"step":2,"data":{"loss":0.25}}\n', None, split="train", source="other")
    Dump.objects.filter(pk=failed.pk).update(state=Dump.State.FAILED)
    assert indexer.reindex_run(run) == 1
    states = Dump.objects.in_bulk()
    assert (states[read.pk].state, states[failed.pk].state) == (Dump.State.INDEXED, Dump.State.RECEIVED)


def test_indexing_a_deleted_dump_does_nothing(db: None) -> None:
    indexer.index_dump(12345)


def test_metrics_become_series(run: Run) -> None:
    index_file(
        run, b'{"step":1,"data":{"loss":0.5,"kl":null}}\nbad\n{"step":2,"data":{"loss":0.25}}\n', None, split="train"
    )
    curves = series.load_curves([run], ["loss"])
    assert curves[run.uid]["loss"][0]["values"] == [0.5, 0.25]
    assert Dump.objects.get().left_out == {"bad line": 1}


def test_a_dump_of_nothing_but_padding_is_indexed_with_no_rows(run: Run) -> None:
    dump = index_file(run, lines(generation("", "", uid="pad" + "0" * 32 + "_0_0")))
    assert (dump.state, dump.rows, dump.left_out) == (Dump.State.INDEXED, 0, {"padding": 1})


def test_a_huge_integer_does_not_affect_other_values(run: Run) -> None:
    """Tasks about factorials have such answers. `orjson` reads no number that a float cannot represent."""
    huge = 10**320
    huge_row = {
        "prompt": "n!",
        "response": "odd",
        "score": 1.0,
        "states": huge,
        "duration": huge,
        "metrics": {"states": huge},
    }
    huge_row |= {"timing": {"gen": huge, "start": huge, "end": 1.0}, "tools": [{"name": "f", "n": huge}]}
    normal_row = {"prompt": "n!", "response": "plain", "score": 0.0, "states": 7}
    dump = index_file(run, lines(huge_row, normal_row), format="native")
    assert (dump.state, dump.rows) == (Dump.State.INDEXED, 2)
    other = index_file(run, lines({**normal_row, "response": "another dump"}), source="b.jsonl", format="native")
    assert other.state == Dump.State.INDEXED
    exported = b"".join(export_jsonl(find_samples(run).samples)).splitlines()
    found = {row["response"]: row for row in map(json.loads, exported)}
    assert set(found) == {"odd", "plain", "another dump"}
    assert found["odd"]["metrics"] == {"states": str(huge)} and found["odd"]["duration"] is None
    assert found["odd"]["extras"]["states"] == str(huge) and found["plain"]["extras"]["states"] == 7
    Step.objects.update(properties=0)
    assert update_outdated_steps() == 1


def test_a_body_that_cannot_be_read_does_not_stop_other_steps(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        index_file(run, lines(generation()), step)
    Step.objects.update(properties=0)

    def fail(_step: int) -> None:
        raise ValueError("number is infinity")

    monkeypatch.setattr(outdated, "update_step", fail)
    assert update_outdated_steps() == 2 and not outdated.has_outdated_steps()
