"""Compressed dump files, from a folder to the steps of a run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard

from rollouts.indexing.indexer import index_dump
from rollouts.models import Dump, Step
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.support.step_files import run_import
from tests.rolloutdeck.watch.conftest import deck, start_watch, trainer
from tests.rolloutdeck.watch.trainer import StartWatch, Trainer, run_turns

__all__ = ["deck", "trainer", "start_watch"]

EPISODES = Path(__file__).parents[2] / "data/verifiers/prime/rollouts/step_3/train/all/traces.jsonl"
ROWS = b"".join(
    json.dumps({"input": "2+2?", "output": f"it is {n}", "score": n, "step": 12}).encode() + b"\n" for n in range(3)
)


def compress_lines(body: bytes) -> bytes:
    """Returns a frame for each line and one that readers skip, like the seekable chunks of prime-rl."""
    frames = [pa.Codec("zstd").compress(line, asbytes=True) for line in body.splitlines(keepends=True)]
    return b"".join(frames) + b"\x5e\x2a\x4d\x18\x04\x00\x00\x00abcd"


def index_steps() -> dict[tuple[str, int], int]:
    for dump in Dump.objects.filter(state=Dump.State.RECEIVED):
        index_dump(dump.pk)
    return {(row.split, row.step): row.samples for row in Step.objects.filter(samples__gt=0)}


@pytest.mark.django_db(transaction=True)
def test_compressed_files_are_read_as_the_plain_ones(node: Path) -> None:
    for name, body in (
        ("val/12.jsonl.gz", gzip.compress(ROWS)),
        ("00000.jsonl.zst", compress_lines(EPISODES.read_bytes())),
    ):
        (node / name).parent.mkdir(exist_ok=True)
        (node / name).write_bytes(body)
    assert run_import(node) == 0
    assert index_steps() == {("eval", 12): 3, ("train", 3): 3}
    assert {dump.format for dump in Dump.objects.all()} >= {"verl-jsonl", "verifiers"}


@pytest.mark.django_db(transaction=True)
def test_a_truncated_compressed_file_fails_with_the_reason(node: Path) -> None:
    (node / "12.jsonl.gz").write_bytes(gzip.compress(ROWS)[:-9])
    assert run_import(node, "--no-wait") == 0
    with pytest.raises(Exception, match="compressed with gzip and truncated or damaged"):
        index_dump(Dump.objects.get().pk)
    assert Dump.objects.get().state == Dump.State.FAILED


def test_a_chunk_that_was_sent_while_it_grew_is_not_sent_again_when_compressed(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    trainer.write("traces/00000.jsonl", EPISODES.read_text())
    watch = start_watch()
    run_turns(watch)
    full = trainer.write("traces/00000.jsonl.zst", "")
    full.write_bytes(zstandard.compress(EPISODES.read_bytes()))  # a file that contains its size
    (trainer.folder / "traces/00000.jsonl").unlink()
    run_turns(watch)
    assert deck.bodies() == [EPISODES.read_bytes()]
    trainer.write("traces/00001.jsonl.zst", "").write_bytes(full.read_bytes())
    run_turns(watch)
    assert deck.bodies()[1:] == [full.read_bytes()]
