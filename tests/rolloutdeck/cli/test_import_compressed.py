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
from tests.rolloutdeck.support.step_files import imported
from tests.rolloutdeck.watch.conftest import deck, trainer, watching
from tests.rolloutdeck.watch.trainer import Trainer, Watching, turns

__all__ = ["deck", "trainer", "watching"]

EPISODES = Path(__file__).parents[2] / "data/verifiers/prime/rollouts/step_3/train/all/traces.jsonl"
ROWS = b"".join(
    json.dumps({"input": "2+2?", "output": f"it is {at}", "score": at, "step": 12}).encode() + b"\n" for at in range(3)
)


def zstd(body: bytes) -> bytes:
    """In a frame for each line and one to pass over, as prime-rl's seekable chunks are."""
    frames = [pa.Codec("zstd").compress(line, asbytes=True) for line in body.splitlines(keepends=True)]
    return b"".join(frames) + b"\x5e\x2a\x4d\x18\x04\x00\x00\x00abcd"


def steps() -> dict[tuple[str, int], int]:
    for dump in Dump.objects.filter(state=Dump.State.RECEIVED):
        index_dump(dump.pk)
    return {(row.split, row.step): row.samples for row in Step.objects.filter(samples__gt=0)}


@pytest.mark.django_db(transaction=True)
def test_what_is_compressed_is_read_as_what_it_holds(node: Path) -> None:
    for name, body in (("val/12.jsonl.gz", gzip.compress(ROWS)), ("00000.jsonl.zst", zstd(EPISODES.read_bytes()))):
        (node / name).parent.mkdir(exist_ok=True)
        (node / name).write_bytes(body)
    assert imported(node) == 0
    assert steps() == {("eval", 12): 3, ("train", 3): 3}
    assert {dump.format for dump in Dump.objects.all()} >= {"verl-jsonl", "verifiers"}


@pytest.mark.django_db(transaction=True)
def test_a_compressed_file_that_breaks_off_says_so(node: Path) -> None:
    (node / "12.jsonl.gz").write_bytes(gzip.compress(ROWS)[:-9])
    assert imported(node, "--no-wait") == 0
    with pytest.raises(Exception, match="compressed with gzip and truncated or damaged"):
        index_dump(Dump.objects.get().pk)
    assert Dump.objects.get().state == Dump.State.FAILED


def test_a_chunk_that_was_sent_while_it_grew_is_not_sent_again_compressed(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    trainer.write("traces/00000.jsonl", EPISODES.read_text())
    follow = watching()
    turns(follow)
    full = trainer.write("traces/00000.jsonl.zst", "")
    full.write_bytes(zstandard.compress(EPISODES.read_bytes()))  # a file that says its size
    (trainer.folder / "traces/00000.jsonl").unlink()
    turns(follow)
    assert deck.bodies() == [EPISODES.read_bytes()]
    trainer.write("traces/00001.jsonl.zst", "").write_bytes(full.read_bytes())
    turns(follow)
    assert deck.bodies()[1:] == [full.read_bytes()]
