"""Which dumps and samples of a step are visible after newer versions, other sources and later attempts."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rollouts.errors import StorageUnavailableError
from rollouts.indexing import indexer
from rollouts.ingest import mark_superseded_steps
from rollouts.models import Attempt, Dump, DuplicateSource, Run, Sample, Step
from rollouts.samples import bodies
from tests.rollouts.support.artifacts import register_artifact
from tests.rollouts.support.push import generation, index_file, index_one_dump, lines, list_samples, push
from tests.support import builders
from tests.support.stored import body_path

pytestmark = pytest.mark.django_db


def list_responses(run: Run) -> list[str]:
    return sorted(sample.tail for sample in list_samples(run))


def read_results() -> tuple[Any, ...]:
    """Everything that must not depend on the order in which dumps are indexed."""
    samples = Sample.objects.order_by("id").values_list(
        "id", "dump__sha256", "ordinal", "visible", "score", "advantage"
    )
    sources = DuplicateSource.objects.order_by("sample", "dump__sha256").values_list(
        "sample", "dump__sha256", "ordinal"
    )
    steps = Step.objects.values_list("samples", "groups", "score_mean", "facets")
    states = Dump.objects.order_by("received_at", "pk").values_list("state", flat=True)
    return list(samples), list(sources), list(steps), list(states)


def test_a_file_that_was_written_again_supersedes_its_older_version(run: Run) -> None:
    old = index_file(run, lines(generation("a", "1"), generation("a", "2")))
    first = list_samples(run)[0]
    index_file(run, lines(generation("a", "2"), generation("a", "3")))
    old.refresh_from_db()
    assert old.state == Dump.State.SUPERSEDED
    assert list_responses(run) == ["2", "3"]
    assert Step.objects.get().samples == 2
    hidden = Sample.objects.get(pk=first.pk)
    assert (hidden.visible, hidden.dump) == (False, old)
    assert bodies.load_bodies([hidden])[hidden.id].response == "1"


def test_a_sample_that_arrives_again_keeps_its_id_and_moves_to_the_new_dump(run: Run) -> None:
    index_file(run, lines(generation("a", "1"), generation("a", "2")))
    ids = {sample.tail: sample.id for sample in list_samples(run)}
    new = index_file(run, lines(generation("a", "2")))
    (sample,) = list_samples(run)
    assert (sample.id, sample.dump, sample.ordinal) == (ids["2"], new, 0)


def test_a_file_that_is_changed_back_shows_its_first_version_again(run: Run) -> None:
    first = index_file(run, lines(generation("a", "1")))
    ids = [sample.id for sample in list_samples(run)]
    second = index_file(run, lines(generation("a", "2")))
    index_file(run, lines(generation("a", "1")))
    states = [Dump.objects.get(pk=dump.pk).state for dump in (first, second)]
    assert (states, [sample.id for sample in list_samples(run)]) == ([Dump.State.INDEXED, Dump.State.SUPERSEDED], ids)
    assert list_responses(run) == ["1"]
    index_file(run, lines(generation("a", "2")))
    assert list_responses(run) == ["2"]


def test_two_sources_of_a_step_give_one_set_of_rows_with_the_fields_of_both(run: Run) -> None:
    file = index_file(run, lines(generation("a", "1", 0.5), generation("a", "2", 1.0)))
    rich = [{"prompt": "a", "response": text, "advantages": [0.25], "response_ids": [7], "lang": "en"} for text in "21"]
    plugin = index_file(run, lines(*rich), source="plugin-1", format="native")
    samples = list_samples(run)
    assert [(sample.tail, sample.score, sample.advantage, sample.tokens) for sample in samples] == [
        ("1", 0.5, 0.25, 1),
        ("2", 1.0, 0.25, 1),
    ]
    assert {sample.dump for sample in samples} == {file}
    body = bodies.load_bodies(samples)[samples[0].id]
    assert (body.score, body.advantages, body.extras["lang"], body.source_dumps) == (0.5, [0.25], "en", [file, plugin])
    assert Step.objects.get().samples == 2


def test_samples_of_different_sources_are_added(run: Run) -> None:
    index_file(run, lines(generation("a", "1")), source="rank-0", producer="0")
    index_file(run, lines(generation("a", "1"), generation("a", "2")), source="rank-1", producer="1")
    assert list_responses(run) == ["1", "1", "2"]


def test_a_sample_whose_dump_is_superseded_moves_to_its_other_source(run: Run) -> None:
    index_file(run, lines(generation("a", "1"), generation("a", "2")))
    plugin = index_file(run, lines({"prompt": "a", "response": "1"}), source="plugin", format="native")
    index_file(run, lines(generation("a", "3")))
    assert {(sample.tail, sample.visible) for sample in Sample.objects.all()} == {
        ("1", True),
        ("2", False),
        ("3", True),
    }
    assert Sample.objects.get(tail="1").dump == plugin
    assert not DuplicateSource.objects.exists()


@pytest.mark.one_database
@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_the_order_of_indexing_does_not_matter(run: Run, order: tuple[int, ...]) -> None:
    def push_dumps(name: str) -> list[Dump]:
        target = builders.run(run.project, name, uid="same-" + name) if name != "grpo" else run
        return [
            push(target, lines(generation("a", "1", 0.5), generation("a", "2", 1.0))),
            push(target, lines({"prompt": "a", "response": "1", "advantages": 0.5}), source="plugin", format="native"),
            push(target, lines(generation("a", "2", 1.0), generation("a", "3", 0.0))),
            push(target, lines({"prompt": "a", "response": "3", "score": 9.0}), source="other", format="native"),
        ]

    dumps = push_dumps("grpo")
    for position in order:
        index_one_dump(dumps[position])
    before = read_results()
    indexer.reindex_run(run)
    for dump in dumps:
        indexer.index_dump(dump.pk)
    assert read_results() == before
    assert before[3] == ["superseded", "indexed", "indexed", "indexed"]


def test_chunks_of_a_growing_file_are_added_until_it_starts_again(run: Run) -> None:
    index_file(run, lines(generation("a", "1")), source="traces", offset=0)
    index_file(run, lines(generation("a", "2")), source="traces", offset=80)
    assert list_responses(run) == ["1", "2"]
    index_file(run, lines(generation("a", "3")), source="traces", offset=0, generation=1)
    assert list_responses(run) == ["3"]


def test_a_newer_version_that_cannot_be_read_leaves_the_older_one_in_place(run: Run) -> None:
    index_file(run, lines(generation("a", "1")))
    broken = push(run, b"torn")
    with pytest.raises(Exception, match="in no format"):
        indexer.index_dump(broken.pk)
    assert list_responses(run) == ["1"]


def damage_or_delete_body(dump: Dump, content: bytes | None) -> None:
    assert dump.segment
    path = body_path(dump.segment.path)
    path.unlink() if content is None else path.write_bytes(content)


@pytest.mark.parametrize("content", [None, b"", b"damaged"], ids=["missing", "empty", "damaged"])
def test_a_reindex_restores_all_bodies_of_a_step(run: Run, content: bytes | None) -> None:
    dumps = [index_file(run, lines(generation("a", text)), source=f"rank-{text}", producer=text) for text in "123"]
    before = read_results()
    for dump in dumps:
        damage_or_delete_body(dump, content)
    indexer.reindex_run(run)
    for dump in dumps:
        indexer.index_dump(dump.pk)
    assert read_results() == before
    assert sorted(body.response for body in bodies.load_bodies(list_samples(run)).values()) == ["1", "2", "3"]


def test_a_version_that_waits_for_its_body_leaves_the_older_one_in_place(run: Run) -> None:
    index_file(run, lines(generation("a", "1")))
    newer = index_file(run, lines(generation("a", "2")))
    other = index_file(run, lines(generation("b", "3")), source="other")
    damage_or_delete_body(newer, None)
    indexer.reindex_run(run)
    index_one_dump(other)
    assert list_responses(run) == ["1", "3"]
    indexer.index_dump(newer.pk)
    assert list_responses(run) == ["2", "3"]


def test_a_damaged_body_of_a_step_is_named_by_the_next_dump_and_restored_by_a_reindex(run: Run) -> None:
    old = index_file(run, lines(generation("a", "1")))
    damage_or_delete_body(old, b"damaged")
    new = push(run, lines(generation("a", "2")), source="other")
    for _ in range(Dump.MAX_TRIES):
        with pytest.raises(StorageUnavailableError, match=f"body of dump {old.pk} is damaged .*; index the run again"):
            indexer.index_dump(new.pk)
    new.refresh_from_db()
    assert new.state == Dump.State.FAILED
    indexer.reindex_run(run)
    for dump in (new, old):
        indexer.index_dump(dump.pk)
    assert list_responses(run) == ["1", "2"]


def test_a_dump_without_raw_bytes_that_is_queued_again_takes_its_place_among_the_versions(run: Run) -> None:
    body = lines(generation("a", "1")) + b"torn\n"
    first = index_file(run, body)
    index_file(run, lines(generation("a", "2")))
    query = Dump.objects.filter(pk=first.pk)
    query.update(raw_dropped_at=timezone.now())
    query.requeue(timezone.now())
    indexer.index_dump(first.pk)
    assert (query.get().state, list_responses(run)) == (Dump.State.SUPERSEDED, ["2"])
    again = index_file(run, body)
    assert (again.pk, again.state, list_responses(run)) == (first.pk, Dump.State.INDEXED, ["1"])
    assert (again.rejected, again.problems) == (1, first.problems)


def index_launch(run: Run, number: int, steps: range, **more: Any) -> None:
    for step in steps:
        index_file(run, lines(generation("a", f"{number}-{step}", step=step)), step, attempt=f"launch-{number}", **more)


def list_visible_steps(run: Run, split: str = "train") -> list[tuple[int, int]]:
    steps = run.steps.current().filter(split=split).order_by("step")
    return list(steps.values_list("step", "attempt__number"))


def test_a_run_restarted_five_times_shows_each_step_once(run: Run) -> None:
    for number, first in enumerate([1, 4, 3, 6, 2], start=1):
        index_launch(run, number, range(first, first + 4))
    assert list_visible_steps(run) == [(1, 1), (2, 5), (3, 5), (4, 5), (5, 5)]
    assert len(list_samples(run)) == 5
    assert Step.objects.count() == 20


def test_an_attempt_that_began_earlier_but_arrives_later_is_superseded(run: Run) -> None:
    first, second = builders.attempt(run, "launch-1"), builders.attempt(run, "launch-2")
    assert (first.number, second.number) == (1, 2)
    index_launch(run, 2, range(3, 5))
    index_launch(run, 1, range(1, 5))
    assert list_visible_steps(run) == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_a_resumed_run_evaluates_its_checkpoint_again_without_losing_the_step_that_made_it(run: Run) -> None:
    index_launch(run, 1, range(1, 7))
    index_launch(run, 1, range(0, 7, 2), split="eval", source="val")
    index_launch(run, 2, range(4, 5), split="eval", source="val")
    index_launch(run, 2, range(5, 7))
    assert list_visible_steps(run) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2)]
    assert list_visible_steps(run, "eval") == [(0, 1), (2, 1), (4, 2)]


def test_an_evaluation_is_superseded_once_a_later_launch_has_trained_past_it(run: Run) -> None:
    index_launch(run, 1, range(2, 9, 2), split="eval", source="val")
    index_launch(run, 2, range(5, 6))
    assert list_visible_steps(run, "eval") == [(2, 1), (4, 1)]


def test_an_imported_batch_of_a_step_that_a_launch_lacks_hides_no_later_step(run: Run) -> None:
    for steps in (range(1, 3), range(4, 6)):
        index_launch(run, 1, steps)
    index_launch(run, 2, range(1, 6))
    run.dumps.filter(attempt__number=2).update(source=f"{Dump.ARTIFACT_PREFIX}key/batch")
    register_artifact(run)
    mark_superseded_steps(run)
    assert list_visible_steps(run) == [(1, 1), (2, 1), (3, 2), (4, 1), (5, 1)]
    index_launch(run, 1, range(3, 4))
    assert list_visible_steps(run) == [(step, 1) for step in range(1, 6)]


def test_steps_come_back_when_only_their_attempt_is_left(run: Run) -> None:
    index_launch(run, 1, range(1, 4))
    index_launch(run, 2, range(2, 4))
    run.steps.filter(attempt__number=2).update(samples=0)
    mark_superseded_steps(run)
    assert list_visible_steps(run)[:1] == [(1, 1)] and run.steps.current().filter(attempt__number=1).count() == 3


def test_steps_of_different_kinds_do_not_supersede_each_other(run: Run) -> None:
    index_launch(run, 1, range(100, 103), step_kind="feed_index")
    index_launch(run, 2, range(1, 3), step_kind="global_step")
    assert run.steps.filter(superseded=True).count() == 0
    assert Attempt.objects.count() == 2


def test_flags_stay_on_their_sample_after_a_reindex(run: Run, owner: User) -> None:
    dump = index_file(run, lines(generation("a", "1")))
    flag = builders.flag(list_samples(run)[0].id, owner)
    indexer.reindex_run(run)
    indexer.index_dump(dump.pk)
    flag.refresh_from_db()
    assert (flag.sample, flag.withdrawn_at, flag.step) == (list_samples(run)[0].id, None, Step.objects.get())


def turn_row(response: str, turn: int, trajectory: str = "0", **more: Any) -> dict[str, Any]:
    return {"prompt": "a", "response": response, "group": "g", "trajectory": trajectory, "turn": turn, **more}


def test_trajectories_of_different_producers_are_different(run: Run) -> None:
    for rank in "12":
        rows = [turn_row(f"{rank}: first", 0), turn_row(f"{rank}: last", 1)]
        index_file(run, lines(*rows), source=f"rank-{rank}", producer=rank, format="native")
    assert {sample.tail for sample in list_samples(run) if sample.final} == {"1: last", "2: last"}


@pytest.mark.parametrize("dumps", [1, 2])
def test_a_trajectory_name_belongs_to_its_group_with_one_or_several_dumps(run: Run, dumps: int) -> None:
    both = [(group, turn) for group in "ab" for turn in (0, 1)]
    rows = [{**turn_row(f"{group}{turn}", turn), "group": group} for group, turn in both]
    rows += [{"prompt": f"{a}{turn}", "response": f"alone {a}{turn}", "trajectory": a} for a, turn in both]
    for number in range(dumps):
        index_file(run, lines(*rows[number::dumps]), source=f"part-{number}", format="native")
    assert {sample.tail for sample in list_samples(run) if sample.final} == {"a1", "b1", "alone a1", "alone b1"}


@pytest.mark.parametrize("order", ["plain first", "told first"])
def test_turns_that_one_source_names_are_kept_in_any_order_of_arrival(run: Run, order: str) -> None:
    plain = lines(generation("a", "first"), generation("a", "last"))
    with_turns = lines(turn_row("first", 0), turn_row("last", 1))
    sources: list[tuple[bytes, dict[str, str]]] = [(plain, {}), (with_turns, {"source": "plugin", "format": "native"})]
    for body, header in sources if order == "plain first" else reversed(sources):
        index_file(run, body, **header)
    assert [(sample.tail, sample.final, sample.trajectory) for sample in list_samples(run)] == [
        ("first", False, "0"),
        ("last", True, "0"),
    ]
