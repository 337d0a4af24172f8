"""Which rows of a pin's files a plan leaves out because their samples are flagged bad."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rolloutdeck.safe_pickle.rewrite import mask
from rollouts.flags import bulk
from rollouts.models import Artifact, Dump, DuplicateSource, Entry, Label, Pin, Project, Run, Sample
from rollouts.pins import artifact_check, pins
from rollouts.replay import compatibility, exclusion
from tests.rollouts.support.artifacts import register_artifact, upload_files
from tests.rollouts.support.push import DUMPS, generation, index_file, line, push
from tests.rollouts.support.verl_batches import (
    ASYNC,
    SHAPE,
    V0,
    V1,
    add_tokenizer,
    create_ready_artifact,
    index_waiting_dumps,
)
from tests.support import builders

pytestmark = pytest.mark.django_db

FACTS = {**SHAPE, "prompts": 8, "rows": 32}


def pin_indexed_step(run: Run, by: User, path: Any = V0, **more: Any) -> tuple[Pin, Artifact]:
    """Pins a step whose files have arrived and were indexed."""
    artifact = create_ready_artifact(run, path, **{"facts": {"role": more.get("role", "rollout"), **FACTS}, **more})
    index_waiting_dumps(run)
    kind = more.get("step_kind", "global_step")
    return pins.pin_step(run, artifact.step, by, step_kind=kind)[0], artifact


def flag_sample(sample: Sample, by: User, label: str = "bad") -> Label:
    return builders.flag_row(sample, by, label)


def list_run_samples(run: Run) -> list[Sample]:
    return list(Sample.objects.filter(step__run=run).select_related("step__run").order_by("ordinal"))


def test_a_flagged_sample_is_a_record_of_the_file_that_it_came_from(run: Run, owner: User) -> None:
    pin, artifact = pin_indexed_step(run, owner)
    for position in (5, 6, 9):
        flag_sample(list_run_samples(run)[position], owner)
    result = exclusion.find_exclusions([pin])[pin.pk]
    assert (result.selected_count, result.not_found) == (3, 0)
    assert result.artifacts == {artifact.pk: exclusion.ExcludedRows({"gen_batch.dp": (5, 6, 9)}, prompts=2)}


def test_only_bad_flags_that_are_not_withdrawn_count(run: Run, owner: User) -> None:
    pin, _ = pin_indexed_step(run, owner)
    flag_sample(list_run_samples(run)[0], owner, "good")
    bulk.withdraw_flag(flag_sample(list_run_samples(run)[1], owner), owner)
    assert exclusion.find_exclusions([pin]) == {}


def test_a_flagged_sample_that_was_joined_with_a_batch_is_found_in_the_batch(run: Run, owner: User) -> None:
    """V0: the trainer's own file has another order than the batch; its samples are joined by prompt and response."""
    add_tokenizer(run)
    index_file(run, (DUMPS / "v0/rollout/1.jsonl").read_bytes(), format="verl-jsonl")
    pin, artifact = pin_indexed_step(run, owner)
    sample = list_run_samples(run)[7]
    flag_sample(sample, owner)
    (rows,) = exclusion.find_exclusions([pin])[pin.pk].artifacts.values()
    (record,) = rows.records["gen_batch.dp"]
    assert DuplicateSource.objects.get(sample=sample.id).ordinal == record
    assert rows.prompts == 1


def test_a_sample_that_no_file_has_is_counted_as_not_found(run: Run, owner: User) -> None:
    index_file(run, line(generation(prompt="nothing like it", step=1)), format="verl-jsonl")
    pin, _ = pin_indexed_step(run, owner)
    flag_sample(list_run_samples(run)[0], owner)
    result = exclusion.find_exclusions([pin])[pin.pk]
    assert (result.selected_count, result.not_found, dict(result.artifacts)) == (1, 1, {})
    assert exclusion.explain_refusal(result, []) == "flagged samples not found in its files: 1"


def test_a_file_whose_dump_was_thinned_is_not_searched_by_its_new_row_numbers(run: Run, owner: User) -> None:
    pin, _ = pin_indexed_step(run, owner)
    flag_sample(list_run_samples(run)[9], owner)
    for position, sample in enumerate(list_run_samples(run)[8:]):  # what retention does to the rows that stay
        Sample.objects.filter(pk=sample.pk).update(ordinal=position)
    Dump.objects.update(samples_dropped_at=timezone.now())
    result = exclusion.find_exclusions([pin])[pin.pk]
    assert (result.selected_count, result.not_found, dict(result.artifacts)) == (1, 1, {})


def pin_step_of_prompt(run: Run, owner: User, feed: int) -> tuple[Pin, Artifact]:
    """Pins a step that was trained on the prompt with the index `feed`, whose files are an artifact."""
    artifact = create_ready_artifact(
        run, ASYNC, step=feed, role="async_rollout", step_kind="feed_index",
        facts={**SHAPE, "role": "async_rollout", "prompts": 1, "rows": 4},
    )  # fmt: skip
    row = {"prompt": "p", "response": "r", "group": f"uid_sample_0_{feed}"}
    index_file(run, line(row), format="native")
    return pins.pin_step(run, 1, owner)[0], artifact


def test_where_each_prompt_has_its_own_files_a_flag_leaves_out_the_prompt(run: Run, owner: User) -> None:
    pin, artifact = pin_step_of_prompt(run, owner, 7)
    flag_sample(Sample.objects.get(group="uid_sample_0_7"), owner)
    result = exclusion.find_exclusions([pin])[pin.pk]
    assert result.artifacts[artifact.pk].is_fully_selected and result.not_found == 0
    assert exclusion.explain_refusal(result, [artifact]) == "all its prompts have samples flagged bad"
    assert exclusion.explain_refusal(result, [artifact, Artifact(pk=-1)]) == ""


def check_pin(pin: Pin, facts: dict[str, Any], **more: Any) -> dict[str, tuple[Any, Any, str]]:
    entry, result = Entry(pin=pin), exclusion.find_exclusions([pin]).get(pin.pk)
    differences = compatibility.check_entry_compatibility(
        entry, facts, more.pop("loosened", ()), result, **{"on_selected": "exclude", **more}
    ).differences
    return {
        difference.fact: (difference.pinned, difference.asking, difference.verdict)
        for difference in differences
        if difference.fact in ("rows", "prompts")
    }


RUN_FACTS = {"role": "rollout", **FACTS}


def test_a_trainer_that_takes_whole_batches_refuses_a_batch_that_became_shorter(run: Run, owner: User) -> None:
    pin, _ = pin_indexed_step(run, owner)
    flag_sample(list_run_samples(run)[5], owner)
    assert check_pin(pin, RUN_FACTS) == {"rows": (28, 32, "refuse"), "prompts": (7, 8, "refuse")}
    assert check_pin(pin, {**RUN_FACTS, "rows": 28, "prompts": 7}) == {}
    assert check_pin(pin, RUN_FACTS, on_selected="keep") == {}


def test_a_trainer_that_repeats_prompts_is_only_warned_of_a_batch_that_became_shorter(run: Run, owner: User) -> None:
    pin, _ = pin_indexed_step(run, owner, V1, role="rollout_tq")
    flag_sample(list_run_samples(run)[5], owner)
    request_data = {**RUN_FACTS, "role": "rollout_tq"}
    assert check_pin(pin, request_data) == {"rows": (28, 32, "warn"), "prompts": (7, 8, "warn")}
    other = {**request_data, "rows": 64, "prompts": 16}
    assert check_pin(pin, other) == {"rows": (32, 64, "refuse"), "prompts": (8, 16, "refuse")}


def test_many_pins_cost_no_more_queries_than_one(
    run: Run, project: Project, owner: User, django_assert_max_num_queries: Any
) -> None:
    for item in (run, builders.run(project, "second"), builders.run(project, "third")):
        pin_indexed_step(item, owner)
        flag_sample(list_run_samples(item)[0], owner)
    matches = list(Pin.objects.prefetch_related("artifacts"))
    with django_assert_max_num_queries(5):
        assert [item.selected_count for item in exclusion.find_exclusions(matches).values()] == [1, 1, 1]


def create_slime_artifact(run: Run, *texts: str | None, has_dump: bool) -> Artifact:
    """A file of slime with these responses, None for one that can't be read; `has_dump`: also as a dump of its own."""
    file = io.BytesIO()
    rows = [{"prompt": "2+2?", "response": text, "reward": 1.0, "group_index": 0} if text else "torn" for text in texts]
    mask.write_plain_archive({"rollout_id": 0, "samples": rows}, file)
    if has_dump:
        push(run, file.getvalue(), step=0, step_kind="rollout_id", source="0.pt", format="slime-rollout")
    files, facts = {"0.pt": file.getvalue()}, {"format": "slime-rollout", "rows": len(texts), "prompts": 1}
    artifact = register_artifact(run, 0, files, role="rollout", step_kind="rollout_id", facts=facts)
    artifact_check.check_artifact(upload_files(artifact, files).pk)
    index_waiting_dumps(run)
    return artifact


@pytest.mark.parametrize("has_dump", [True, False])
def test_flagged_rows_of_a_trainer_that_takes_them_without_weight_stay_in_its_file(
    run: Run, owner: User, has_dump: bool
) -> None:
    artifact = create_slime_artifact(run, "4", "5", "6", has_dump=has_dump)
    assert run.dumps.count() == 1
    pin = pins.pin_step(run, 0, owner, step_kind="rollout_id")[0]
    flag_sample(list_run_samples(run)[1], owner)
    result = exclusion.find_exclusions([pin])[pin.pk]
    assert result == exclusion.PinExclusion(
        1, 0, {artifact.pk: exclusion.ExcludedRows({"0.pt": (1,)}, prompts=0)}, prompts=1
    )
    assert result.artifacts[artifact.pk].get_remaining_facts({"rows": 3}) == {"rows": 3}
    for sample in (list_run_samples(run)[0], list_run_samples(run)[2]):
        flag_sample(sample, owner)
    assert exclusion.find_exclusions([pin])[pin.pk].artifacts[artifact.pk].is_fully_selected


@pytest.mark.parametrize("has_dump", [True, False])
def test_no_flagged_row_is_found_in_a_file_with_an_unreadable_row(run: Run, owner: User, has_dump: bool) -> None:
    create_slime_artifact(run, None, "5", has_dump=has_dump)
    pin = pins.pin_step(run, 0, owner, step_kind="rollout_id")[0]
    flag_sample(list_run_samples(run)[0], owner)
    assert exclusion.find_exclusions([pin])[pin.pk].not_found == 1


@pytest.mark.parametrize(("more", "expected"), [({"filtered": True}, (1, 0)), ({}, (2, 1))])
def test_a_flagged_sample_that_a_filter_of_slime_dropped_is_not_counted(
    run: Run, owner: User, more: dict[str, Any], expected: tuple[int, int]
) -> None:
    """slime's file holds what was trained on, so it would never load that sample."""
    artifact = create_slime_artifact(run, "4", "5", has_dump=False)
    body = line({"prompt": "2+2?", "response": "5", "score": 1.0, "group": "0"})
    body += line({"prompt": "3+3?", "response": "7", "score": 0.0, "group": "1", **more})
    index_file(run, body, step=0, step_kind="rollout_id", source="call:1", format="native")
    pin = pins.pin_step(run, 0, owner, step_kind="rollout_id")[0]
    flag_sample(Sample.objects.get(tail="7"), owner)
    assert exclusion.find_exclusions([pin]).get(pin.pk, exclusion.NO_EXCLUSION).not_found == expected[1]
    flag_sample(Sample.objects.get(tail="5"), owner)
    result = exclusion.find_exclusions([pin])[pin.pk]
    assert (result.selected_count, result.not_found) == expected
    assert result.artifacts == {artifact.pk: exclusion.ExcludedRows({"0.pt": (1,)}, prompts=0)}
