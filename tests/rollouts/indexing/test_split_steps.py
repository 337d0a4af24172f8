"""Files of several steps, and tables with mapped columns."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import polars
import pytest

from rollouts.formats import verifiers
from rollouts.indexing import reading, split_steps
from rollouts.indexing.indexer import index_dump, reindex_run
from rollouts.ingest import dumps
from rollouts.models import Dump, Run, Sample, Step
from rollouts.samples import bodies
from rollouts.samples.record import Record
from tests.rollouts.real_dumps import DUMPS
from tests.rollouts.support.push import lines, push
from tests.rollouts.support.trainer_dumps import read_items

pytestmark = pytest.mark.django_db
CSV = b"question,answer,reward,global_step\n1+1?,2,1,4\n1+1?,3,0,4\n2+2?,4,1,5\n"


def index_body(run: Run, body: bytes, tmp_path: Path, **header: object) -> Dump:
    from rollouts.storage import files

    dump_header = dumps.DumpHeader(**{"attempt": "files", "split": "train", "step": None, "source": "a.csv", **header})  # type: ignore[arg-type]
    dump, _ = dumps.accept_dump(run, dump_header, *write_incoming_file(body, files.create_incoming_path()))
    index_dump(dump.pk)
    dump.refresh_from_db()
    return dump


def write_incoming_file(body: bytes, path: Path) -> tuple[str, Path, int]:
    import hashlib

    path.write_bytes(body)
    return hashlib.sha256(body).hexdigest(), path, len(body)


def count_samples_by_step(run: Run) -> dict[int, int]:
    return dict(Step.objects.filter(run=run, samples__gt=0).values_list("step", "samples"))


def test_a_table_of_several_steps_becomes_each_of_them(run: Run, tmp_path: Path) -> None:
    dump = index_body(run, CSV, tmp_path, columns="prompt=question,response=answer")
    assert (dump.state, dump.step, dump.rows) == (Dump.State.INDEXED, None, 0)
    assert count_samples_by_step(run) == {4: 2, 5: 1}
    assert set(Sample.objects.filter(step__step=4).values_list("score", flat=True)) == {0.0, 1.0}


def test_a_step_that_is_written_as_text_counts(run: Run, tmp_path: Path) -> None:
    rows = ({"prompt": "q", "response": step, "score": 1.0, "step": step} for step in ("12", "12", "13.0", "x"))
    dump = index_body(run, lines(*rows), tmp_path, source="a.jsonl", format="native")
    assert (count_samples_by_step(run), dump.rejected) == ({12: 2, 13: 1}, 1)


def test_an_unmapped_column_stays_an_extra_in_a_step_without_the_mapped_column(run: Run, tmp_path: Path) -> None:
    body = b"prompt,response,gold,label,step\n1+1?,2,2,good,4\n2+2?,4,,bad,5\n"
    index_body(run, body, tmp_path, columns="ground_truth=gold")
    bodies_by_step = {row.step.step: bodies.load_bodies([row])[row.id] for row in Sample.objects.all()}
    assert {step: (sample.ground_truth, sample.extras["label"]) for step, sample in bodies_by_step.items()} == {
        4: ("2", "good"), 5: (None, "bad"),
    }  # fmt: skip


BAD_STEPS = ["2.5", "x7", "1e20", "-1", "inf", "-2.0"]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "native"])
def test_a_row_with_an_invalid_step_is_rejected_with_its_line(run: Run, tmp_path: Path, form: str) -> None:
    steps_of_rows = ["4", *BAD_STEPS, "5", "4.0"]
    rows = [{"prompt": "1+1?", "completion": str(number), "reward": 1.0} for number in range(len(steps_of_rows))]
    if form == "csv":
        body = "prompt,completion,reward,step\n" + "".join(f"q,{n},1,{step}\n" for n, step in enumerate(steps_of_rows))
        data, first_line = body.encode(), 2
    elif form == "parquet":
        polars.DataFrame(rows).with_columns(step=polars.Series(steps_of_rows)).write_parquet(tmp_path / "a.parquet")
        data, first_line = (tmp_path / "a.parquet").read_bytes(), 1
    else:
        values = [2.5, "x7", 1e20, -1, "inf", -2.0]
        written_rows = [{**row, "step": step} for row, step in zip(rows, [4, *values, 5, 4.0], strict=True)]
        if form == "native":
            written_rows = [{**row, "response": row.pop("completion"), "score": 1.0} for row in written_rows]
        data, first_line = lines(*written_rows), 1
    dump = index_body(run, data, tmp_path, source=f"a.{form}", format="native" if form == "native" else "")
    assert (dump.state, dump.rejected, count_samples_by_step(run)) == (Dump.State.INDEXED, 6, {4: 2, 5: 1})
    bad_lines = range(first_line + 1, first_line + 7)
    assert dump.problems == [[line, "`step` is no step: a step is a whole number from 0"] for line in bad_lines]


def test_rows_without_a_step_are_step_0(run: Run, tmp_path: Path) -> None:
    index_body(run, b"prompt,completion,reward,step\nq,1,1,\nq,2,1,nan\nq,3,1,2\n", tmp_path)
    assert count_samples_by_step(run) == {0: 2, 2: 1}


def test_a_negative_step_that_is_stored_is_indexed_again(run: Run, tmp_path: Path) -> None:
    dump = index_body(run, CSV, tmp_path, step=-1, columns="prompt=question,response=answer")
    Dump.objects.filter(pk=dump.pk).update(state=Dump.State.RECEIVED)
    index_dump(dump.pk)
    assert count_samples_by_step(run) == {-1: 3}


def test_indexing_a_table_again_changes_no_sample(run: Run, tmp_path: Path) -> None:
    dump = index_body(run, CSV, tmp_path, columns="prompt=question,response=answer")
    before = set(Sample.objects.values_list("pk", flat=True))
    Dump.objects.filter(pk=dump.pk).update(state=Dump.State.RECEIVED)
    index_dump(dump.pk)
    assert (set(Sample.objects.values_list("pk", flat=True)), Dump.objects.count()) == (before, 3)


def test_other_columns_of_the_same_bytes_replace_what_was_read_before(run: Run, tmp_path: Path) -> None:
    index_body(run, CSV, tmp_path, columns="prompt=answer,response=question")
    index_body(run, CSV, tmp_path, columns="prompt=question,response=answer")
    tails = Sample.objects.filter(visible=True).values_list("tail", flat=True)
    assert sorted(tails) == ["2", "3", "4"]


NEWER = CSV + b"2+2?,5,0,5\n"  # the first version of step 5 was incomplete


def push_table(run: Run, body: bytes) -> Dump:
    return push(run, body, None, source="a.csv", columns="prompt=question,response=answer")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_versions_of_a_file_are_ordered_by_arrival_whichever_is_split_first(run: Run, order: tuple[int, int]) -> None:
    dumps = [push_table(run, body) for body in (CSV, NEWER)]
    for position in order:
        index_dump(dumps[position].pk)
    assert count_samples_by_step(run) == {4: 2, 5: 2}
    reindex_run(run)
    for dump in Dump.objects.order_by("-pk"):
        index_dump(dump.pk)
    assert count_samples_by_step(run) == {4: 2, 5: 2}


def test_a_reindex_after_an_upgrade_shows_the_new_reading(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that an earlier version made have arrived when a worker split the file."""
    dump = push_table(run, CSV)
    index_dump(dump.pk)
    Dump.objects.exclude(step=None).update(received_at=dump.received_at + timedelta(seconds=5))
    serialize_record = split_steps.serialize_record
    monkeypatch.setattr(
        split_steps,
        "serialize_record",
        lambda record, *rest: serialize_record(replace(record, response=f"new {record.response}"), *rest),
    )
    reindex_run(run)
    for part in Dump.objects.order_by("-pk"):
        index_dump(part.pk)
    for part in Dump.objects.filter(state=Dump.State.RECEIVED):
        index_dump(part.pk)
    shown = Sample.objects.current_and_visible().values_list("tail", flat=True)
    assert sorted(shown) == ["new 2", "new 3", "new 4"]


def test_a_file_of_several_steps_that_is_changed_back_shows_its_first_version_again(run: Run) -> None:
    for body in (CSV, NEWER, CSV):
        index_dump(push_table(run, body).pk)
    assert count_samples_by_step(run) == {4: 2, 5: 1}


def test_equal_rows_of_a_newer_version_keep_their_place_among_other_sources(run: Run) -> None:
    """The part of step 4 is the same in both versions: it arrives with the newer one, after the other source."""
    index_dump(push_table(run, CSV).pk)
    other = push(run, lines({"prompt": "1+1?", "response": "2", "score": 9.0}), 4, source="plugin", format="native")
    index_dump(other.pk)
    assert not Sample.objects.filter(dump=other)
    index_dump(push_table(run, NEWER).pk)
    assert Sample.objects.get(dump=other).score == 9.0


def test_splitting_a_file_renews_the_claim(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    dump, renewed = push_table(run, CSV), list[int]()

    def renew(claimed: Dump) -> bool:
        renewed.append(claimed.pk)
        return True

    monkeypatch.setattr(reading, "RENEW_SECONDS", 0)
    monkeypatch.setattr(Dump, "renew", renew)
    index_dump(dump.pk)
    assert set(renewed) == {dump.pk} and count_samples_by_step(run) == {4: 2, 5: 1}


def test_a_worker_that_lost_its_claim_stops_splitting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = push_table(run, CSV)
    monkeypatch.setattr(reading, "RENEW_SECONDS", 0)
    monkeypatch.setattr(Dump, "renew", lambda self: False)
    index_dump(dump.pk)
    assert (Dump.objects.count(), count_samples_by_step(run)) == (1, {})


def test_tokens_without_text_are_samples_without_text_of_their_steps(run: Run, tmp_path: Path) -> None:
    body = (DUMPS / "table/open_instruct/tulu_rollouts_000000.jsonl").read_bytes()
    dump = index_body(run, body, tmp_path, source="shard.jsonl")
    assert (dump.state, dump.format, count_samples_by_step(run)) == (Dump.State.INDEXED, "token-table", {1: 4, 2: 4})
    assert set(Sample.objects.values_list("tokens", flat=True)) == {3}
    assert Step.objects.get(step=1).facets["no-text"] == 4


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("response=ansver", "no column `ansver`; it has `question`, `answer`"),
        ("respons=answer", "`respons=answer` is not a column mapping"),
        ("", "--map prompt=COLUMN,response=COLUMN"),
    ],
)
def test_a_table_that_cannot_be_read_fails_with_a_hint(run: Run, tmp_path: Path, columns: str, message: str) -> None:
    from rollouts.errors import UnreadableDumpError

    with pytest.raises(UnreadableDumpError):
        index_body(run, CSV, tmp_path, columns=columns, format="table")
    assert message in Dump.objects.get().message


def test_the_step_of_the_upload_applies_to_all_rows(run: Run, tmp_path: Path) -> None:
    index_body(run, CSV, tmp_path, columns="prompt=question,response=answer", step=9)
    assert count_samples_by_step(run) == {9: 3}


def test_trained_episodes_are_counted_once_and_marked_as_trained(run: Run, tmp_path: Path) -> None:
    folder = DUMPS / "verifiers/prime/rollouts/step_3/train"
    for subset in ("all", "effective"):
        body = (folder / subset / "traces.jsonl").read_bytes()
        path = f"rollouts/step_3/train/{subset}/traces.jsonl"
        index_body(run, body, tmp_path, source=path, step=3, offset=0)
        records = [item for item in read_items(verifiers, body, filename=path, step=3) if isinstance(item, Record)]
        assert {record.extras.get("trained", False) for record in records} == {subset == "effective"}
    assert count_samples_by_step(run) == {3: 3}


def test_programs_and_their_advantages_join_in_one_step(run: Run, tmp_path: Path) -> None:
    """`outputs-rl-….json` has the texts and the tests, `rl_code_data.json` the advantages of the same texts."""
    folder = DUMPS / "cure/step0/temp_data"
    for path in sorted(folder.glob("*data.json")) + sorted(folder.glob("outputs-*Contests.json")):
        index_body(run, path.read_bytes(), tmp_path, source=path.name, step=0)
    assert count_samples_by_step(run) == {0: 32}
    both = Sample.objects.filter(visible=True, score__isnull=False, advantage__isnull=False)
    assert both.count() == 32


def test_a_mapped_step_wins_over_a_column_that_is_called_step(run: Run, tmp_path: Path) -> None:
    body = b"prompt,completion,reward,step,iteration\nq,1,1,4,7\nq,2,1,4,8\n"
    index_body(run, body, tmp_path, columns="step=iteration")
    assert count_samples_by_step(run) == {7: 1, 8: 1}


@pytest.mark.parametrize("step", [0, 7])
def test_rows_before_the_first_step_belong_to_it(run: Run, tmp_path: Path, step: int) -> None:
    first, second = ({"prompt": "p", "response": text, "score": 1.0} for text in ("a", "b"))
    dump = index_body(run, lines(first, {**second, "step": step}), tmp_path, format="native")
    assert (dump.state, dump.step, dump.rows) == (Dump.State.INDEXED, step, 2)
    assert list(Step.objects.filter(run=run).values_list("step", "samples")) == [(step, 2)]


def test_rows_before_the_first_of_several_steps_belong_to_it(run: Run, tmp_path: Path) -> None:
    steps = {"a": {}, "b": {"step": 3}, "c": {"step": 4}}
    rows = [{"prompt": "p", "response": text, "score": 1.0, **step} for text, step in steps.items()]
    index_body(run, lines(*rows), tmp_path, format="native")
    assert list(Step.objects.filter(run=run).order_by("step").values_list("step", "samples")) == [(3, 2), (4, 1)]


@pytest.mark.parametrize("steps", [(1, 1), (1, 2)])
def test_a_table_gives_the_same_samples_whether_it_has_one_step_or_several(
    run: Run, tmp_path: Path, steps: tuple[int, int]
) -> None:
    """Columns that are not mapped may have the names of our fields."""
    other = {"score": 0.9, "response": "raw", "index": "abc"}
    rows = [
        {"prompt": "p", "answer": f"a{at}", "judge": judge, "step": step, **other}
        for at, (judge, step) in enumerate(zip((None, 0.5), steps, strict=True))
    ]
    columns = "prompt=prompt,response=answer,score=judge,step=step"
    index_body(run, lines(*rows), tmp_path, source="t.jsonl", format="table", columns=columns)
    found = list(Sample.objects.current_and_visible().order_by("step__step", "ordinal"))
    assert [(sample.score, sample.index, sample.tail) for sample in found] == [(None, None, "a0"), (0.5, None, "a1")]
    contents = [bodies.load_body(sample).extras for sample in found]
    assert [{name: extras[name] for name in other} for extras in contents] == [other] * 2
