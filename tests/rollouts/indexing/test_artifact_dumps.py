"""Batches that trainers keep are joined with the samples of their step."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from rollouts.indexing import artifact_dumps, indexer
from rollouts.models import Artifact, Dump, DuplicateSource, Run, Sample, Step
from rollouts.query import body_scan, search
from rollouts.samples import bodies
from tests.rollouts.support.artifacts import register_artifact, upload_files
from tests.rollouts.support.push import DUMPS, index_file, index_one_dump, list_samples, push
from tests.rollouts.support.verl_batches import (
    ASYNC,
    COLOCATED,
    V0,
    V1,
    V2,
    add_tokenizer,
    create_ready_artifact,
    index_waiting_dumps,
)
from tests.support.stored import blob_path, raw_path

pytestmark = pytest.mark.django_db

V0_TEXT = (DUMPS / "v0/rollout/1.jsonl").read_bytes()
V1_TEXT = (DUMPS / "v1/rollout/1.jsonl").read_bytes()


def list_fields(run: Run) -> dict[str, tuple[Any, ...]]:
    """The fields of each visible sample that lists show."""
    return {
        item.id: (item.group, item.score, item.chars, item.data_source, item.expected, item.tail)
        for item in list_samples(run)
    }


def count_samples_with_tokens(run: Run) -> int:
    return sum(body.response_ids is not None for body in bodies.load_bodies(list_samples(run)).values())


def test_a_batch_becomes_a_dump_of_its_step_and_its_bytes_stay_in_the_artifact(run: Run) -> None:
    artifact = create_ready_artifact(run, V0, facts={})
    (dump,) = Dump.objects.all()
    assert dump.source == f"artifact:{artifact.key}/gen_batch.dp"
    assert (dump.format, dump.step, dump.bytes) == ("verl-gen-batch", 1, artifact.files["gen_batch.dp"]["bytes"])
    assert not raw_path(run.project_id, dump.sha256).exists()
    index_waiting_dumps(run)
    assert len(list_samples(run)) == 32


def test_an_artifact_that_is_ready_twice_makes_one_dump(run: Run) -> None:
    artifact = create_ready_artifact(run, V0)
    assert [dump.pk for dump in artifact_dumps.create_artifact_dumps(artifact)] == [Dump.objects.get().pk]


def test_a_v1_batch_joins_by_uid_session_and_output_without_a_tokenizer(run: Run) -> None:
    index_file(run, V1_TEXT)
    before = list_fields(run)
    create_ready_artifact(run, V1, role="rollout_tq")
    index_waiting_dumps(run)
    after = list_samples(run)
    assert set(before) == {sample.id for sample in after}
    assert [before[item.id][:3] for item in after] == [(item.group, item.score, item.chars) for item in after]
    assert Step.objects.get().samples == 32
    read = bodies.load_bodies(after)
    assert all(read[item.id].response and not read[item.id].textless for item in after)
    assert all(len(read[item.id].response_ids or ()) == item.tokens for item in after)
    for item in after:
        body = read[item.id]
        assert body.extras["num_turns"] == 2
        assert body.data_source == item.data_source != ""
        assert set(body.rewards) == {"score", "acc", "format"}
        assert len(body.logprobs or ()) == len(body.response_mask or ()) == item.tokens


def test_tokens_that_join_by_uid_are_those_of_the_text(run: Run) -> None:
    """Decodes the tokens to check that each row was joined with its own text."""
    from rollouts.indexing.detokenize import load_tokenizer_file
    from tests.rollouts.support.verl_batches import TOKENIZER

    index_file(run, V1_TEXT)
    create_ready_artifact(run, V1, role="rollout_tq")
    index_waiting_dumps(run)
    decoder = load_tokenizer_file(TOKENIZER / "tokenizer.json")
    assert decoder
    for body in bodies.load_bodies(list_samples(run)).values():
        assert decoder.decode_rows([body.prompt_ids or [], body.response_ids or []]) == [body.prompt, body.response]


def test_the_accuracy_of_the_batch_decides_what_is_correct(run: Run) -> None:
    index_file(run, V1_TEXT)
    assert all(item.correct for item in list_samples(run) if item.score == pytest.approx(0.1))
    create_ready_artifact(run, V1, role="rollout_tq")
    index_waiting_dumps(run)
    result = {
        row.id: body.rewards["acc"] for row, body in zip(list_samples(run), load_bodies_in_order(run), strict=True)
    }
    assert [item.correct for item in list_samples(run)] == [result[item.id] == 1 for item in list_samples(run)]
    assert not any(item.correct for item in list_samples(run) if item.score == pytest.approx(0.1))


def load_bodies_in_order(run: Run) -> list[bodies.SampleBody]:
    result = list_samples(run)
    read = bodies.load_bodies(result)
    return [read[item.id] for item in result]


def test_samples_are_found_by_values_that_only_the_batch_has(run: Run) -> None:
    index_file(run, V1_TEXT)
    create_ready_artifact(run, V1, role="rollout_tq")
    index_waiting_dumps(run)
    accurate_ids = {
        row.id
        for row, body in zip(list_samples(run), load_bodies_in_order(run), strict=True)
        if body.rewards["acc"] == 1
    }
    assert 0 < len(accurate_ids) < 32
    assert {sample.id for sample in search.find_samples(run, step=1, q="acc=1").samples} == accurate_ids
    assert {sample.id for sample in search.find_samples(run, q="acc=0").samples} == set(list_fields(run)) - accurate_ids


def index_joined_step(run: Run) -> tuple[set[str], dict[str, bodies.SampleBody]]:
    """Indexes a step with text and batch, and returns the ids and bodies of its samples."""
    index_file(run, V1_TEXT)
    create_ready_artifact(run, V1, role="rollout_tq")
    index_waiting_dumps(run)
    read = bodies.load_bodies(list_samples(run))
    return set(read), read


def search_ids(run: Run, q: str) -> set[str]:
    ids = {sample.id for sample in search.find_samples(run, step=1, q=q).samples}
    assert ids == {sample.id for sample in search.find_samples(run, q=q).samples}
    return ids


def test_a_negation_finds_samples_of_which_no_body_matches(run: Run) -> None:
    all_ids, read = index_joined_step(run)
    accurate_ids = {pk for pk, body in read.items() if body.rewards["acc"] == 1}
    ids_with_star = {pk for pk, body in read.items() if "*" in body.prompt + body.response}
    assert 0 < len(accurate_ids) < 32 and 0 < len(ids_with_star) < 32
    assert search_ids(run, "-acc=1") == search_ids(run, "acc!=1") == all_ids - accurate_ids
    assert search_ids(run, '-"*"') == all_ids - ids_with_star
    assert search_ids(run, "-num_turns=2") == search_ids(run, "-user") == set()
    assert search_ids(run, '-(acc=1 or "*")') == all_ids - accurate_ids - ids_with_star
    assert search_ids(run, '-(acc=1 "*")') == all_ids - (accurate_ids & ids_with_star)
    assert search_ids(run, '"*" -(acc=1 or -num_turns=2)') == ids_with_star - accurate_ids
    assert search_ids(run, '-acc=1 or (score>0 -(-"*"))') == (all_ids - accurate_ids) | {
        pk for pk in ids_with_star if (read[pk].score or 0) > 0
    }


def test_terms_that_match_different_bodies_of_a_sample_match_together(run: Run) -> None:
    all_ids, read = index_joined_step(run)
    ids_with_star = {pk for pk, body in read.items() if "*" in body.prompt + body.response}
    assert search_ids(run, '"*" num_turns=2') == ids_with_star
    assert search_ids(run, 'num_turns=2 ("*" or quokka)') == ids_with_star
    assert search_ids(run, "num_turns=2 user") == all_ids


def test_a_step_with_one_body_per_sample_is_searched_in_one_scan(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned_nodes: list[object] = []
    scan_bodies = body_scan.scan_bodies

    def record_scan(scope: Any, node: Any, *more: Any) -> list[str]:
        scanned_nodes.append(node)
        return scan_bodies(scope, node, *more)

    monkeypatch.setattr(body_scan, "scan_bodies", record_scan)
    index_file(run, V1_TEXT)
    search_ids(run, '"*" -(index=1 or -user) score>0')
    assert len(scanned_nodes) == 2  # of the step, and of the run


def test_a_v0_batch_joins_by_prompt_and_decoded_response_though_its_rows_are_permuted(run: Run) -> None:
    index_file(run, V0_TEXT)
    before = list_fields(run)
    add_tokenizer(run)
    create_ready_artifact(run, V0)
    index_waiting_dumps(run)
    assert {pk: facts[:3] for pk, facts in list_fields(run).items()} == {pk: facts[:3] for pk, facts in before.items()}
    assert count_samples_with_tokens(run) == 32
    step = Step.objects.get()
    assert (step.samples, step.facets["tokens"]) == (32, 32)
    assert DuplicateSource.objects.count() == 32


def test_without_a_tokenizer_a_v0_batch_adds_nothing_to_a_step_that_has_text(run: Run) -> None:
    index_file(run, V0_TEXT)
    before = list_fields(run)
    create_ready_artifact(run, V0)
    index_waiting_dumps(run)
    assert list_fields(run) == before
    assert (count_samples_with_tokens(run), Step.objects.get().facets.get("tokens")) == (0, None)


def test_a_tokenizer_that_arrives_later_joins_tokens_and_texts(run: Run) -> None:
    index_file(run, V0_TEXT)
    create_ready_artifact(run, V0)
    index_waiting_dumps(run)
    before = set(list_fields(run))
    add_tokenizer(run)
    assert [dump.state for dump in run.dumps.order_by("pk")] == ["indexed", "received"]
    index_waiting_dumps(run)
    assert (set(list_fields(run)), count_samples_with_tokens(run)) == (before, 32)


def test_a_step_with_a_batch_only_shows_prompts_token_ids_and_scores_and_no_text(run: Run) -> None:
    create_ready_artifact(run, ASYNC, role="async_rollout", step_kind="feed_index")
    index_waiting_dumps(run)
    result = list_samples(run)
    body = load_bodies_in_order(run)[0]
    assert len(result) == 4
    assert body.textless
    assert body.messages and body.messages[-1]["role"] == "user"
    assert body.prompt.endswith("assistant\n")
    assert body.response_ids and body.score is not None
    step = Step.objects.get()
    assert (step.step_kind, step.facets["no-text"], step.facets["tokens"]) == ("feed_index", 4, 4)
    assert "empty" not in step.facets and step.length_mean is None
    assert [search.find_samples(run, q=q).total for q in ("no:text", "is:empty")] == [4, 0]


def test_a_step_with_a_batch_only_has_text_after_the_tokenizer_arrives(run: Run) -> None:
    create_ready_artifact(run, ASYNC, role="async_rollout", step_kind="feed_index")
    index_waiting_dumps(run)
    add_tokenizer(run)
    index_waiting_dumps(run)
    assert all(body.response and not body.textless for body in load_bodies_in_order(run))
    assert "no-text" not in Step.objects.get().facets


def test_a_batch_that_was_dumped_again_replaces_the_first(run: Run) -> None:
    create_ready_artifact(run, V0)
    create_ready_artifact(run, COLOCATED)
    index_waiting_dumps(run)
    assert [dump.state for dump in run.dumps.order_by("pk")] == ["superseded", "indexed"]
    assert len(list_samples(run)) == Dump.objects.order_by("pk").last().rows  # type: ignore[union-attr]


def test_tokens_remain_after_the_bytes_of_the_artifact_are_deleted(run: Run) -> None:
    index_file(run, V1_TEXT)
    artifact = create_ready_artifact(run, V1, role="rollout_tq")
    index_waiting_dumps(run)
    blob_path(run.project_id, artifact.files["0/tq_batch.pt"]["sha256"]).unlink()
    indexer.reindex_run(run)
    index_waiting_dumps(run)
    assert (count_samples_with_tokens(run), Step.objects.get().facets["tokens"]) == (32, 32)
    assert {dump.state for dump in run.dumps.all()} == {"indexed"}


def test_labels_of_a_v2_step_come_from_new_batch(run: Run) -> None:
    create_ready_artifact(run, V2)
    index_waiting_dumps(run)
    body = load_bodies_in_order(run)[0]
    assert (body.ground_truth, body.data_source) == ("448", "openai/gsm8k")
    assert len({item.group for item in list_samples(run)}) == 8


@pytest.mark.parametrize("text_first", [True, False])
def test_an_imported_batch_hides_no_text_of_a_launch(run: Run, text_first: bool) -> None:
    def index_text() -> None:
        index_file(run, V0_TEXT, attempt="launch")

    def index_batch() -> None:
        create_ready_artifact(run, V0)
        index_waiting_dumps(run)

    for index in (index_text, index_batch) if text_first else (index_batch, index_text):
        index()
    assert {(item.step.attempt.key, item.chars > 0) for item in list_samples(run)} == {("launch", True)}
    assert len(list_samples(run)) == 32


def test_a_later_launch_with_batches_only_replaces_the_first(run: Run) -> None:
    create_ready_artifact(run, V0, attempt="first")
    create_ready_artifact(run, V2, attempt="second")
    index_waiting_dumps(run)
    assert {item.step.attempt.key for item in list_samples(run)} == {"second"}


def test_an_unsafe_artifact_creates_no_dump(run: Run) -> None:
    files = {"gen_batch.dp": b"\x80\x04cos\nsystem\n(S'true'\ntR.", "meta.json": b"{}"}
    artifact = upload_files(register_artifact(run, 1, files), files)
    from rollouts.pins import artifact_check

    assert artifact_check.check_artifact(artifact.pk) == []
    artifact.refresh_from_db()
    assert (artifact.state, run.dumps.count()) == (Artifact.State.UNSAFE, 0)


@pytest.mark.one_database
@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_the_order_in_which_the_dumps_of_a_step_are_indexed_does_not_matter(
    run: Run, order: tuple[int, ...], has_tokenizer: bool
) -> None:
    if has_tokenizer:
        add_tokenizer(run)
    text = push(run, V1_TEXT)
    create_ready_artifact(run, V1, role="rollout_tq")
    create_ready_artifact(run, V0)
    dumps = [text, *run.dumps.exclude(pk=text.pk).order_by("pk")]
    for position in order:
        index_one_dump(dumps[position])
    before = read_results()
    indexer.reindex_run(run)
    index_waiting_dumps(run)
    assert read_results() == before
    assert len(list_samples(run)) == 32


def read_results() -> tuple[Any, ...]:
    samples = Sample.objects.order_by("id").values_list(
        "id", "dump", "ordinal", "visible", "score", "correct", "facets"
    )
    sources = DuplicateSource.objects.order_by("sample", "dump").values_list("sample", "dump", "ordinal")
    steps = Step.objects.values_list("samples", "groups", "score_mean", "facets")
    return list(samples), list(sources), list(steps), list(Dump.objects.order_by("pk").values_list("state", flat=True))
