"""Tables and episodes from a folder to the steps of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rollouts.indexing.indexer import index_dump
from rollouts.models import Dump, Run, Step
from tests.rolloutdeck.support.step_files import imported

pytestmark = pytest.mark.django_db(transaction=True)
DUMPS = Path(__file__).parents[2] / "data"


def steps() -> dict[tuple[str, str, int], int]:
    for dump in Dump.objects.filter(state=Dump.State.RECEIVED):
        index_dump(dump.pk)
    rows = Step.objects.filter(samples__gt=0)
    return {(row.split, row.step_kind, row.step): row.samples for row in rows}


def test_a_table_with_mapped_columns_becomes_the_steps_that_its_rows_say(node: Path) -> None:
    (node / "log.csv").write_text("frage,antwort,punkte,schritt\n1+1?,2,1,4\n1+1?,3,0,4\n2+2?,4,1,5\n")
    assert imported(node, "--map", "prompt=frage,response=antwort,score=punkte", "--map", "step=schritt") == 0
    assert steps() == {("train", "global_step", 4): 2, ("train", "global_step", 5): 1}
    assert Run.objects.get().framework == "tables"


def test_all_real_steps_of_coder_and_tester_are_brought_with_their_advantages(node: Path) -> None:
    """Of 4 tasks a step, with 4 programs and 4 tests each, in three files and a copy from before the tests were run."""
    shutil.copytree(DUMPS / "cure", node / "cure", ignore=shutil.ignore_patterns("*.expected.json"))
    assert imported(node) == 0
    assert steps() == {("train", "iteration", 0): 32, ("train", "iteration", 1): 32}
    assert Run.objects.get().framework == "cure"


def test_a_trainers_files_are_brought_with_their_steps_and_splits(node: Path) -> None:
    for name in ("nemo_rl", "verifiers", "rllm"):
        shutil.copytree(DUMPS / name, node / name, ignore=shutil.ignore_patterns("*.expected.json"))
    shutil.copytree(DUMPS / "table/areal", node / "areal", ignore=shutil.ignore_patterns("*.expected.json"))
    assert imported(node) == 0
    assert steps() == {
        ("train", "global_step", 3): 7, ("eval", "global_step", 2): 2, ("eval", "global_step", 0): 5,
        ("train", "global_step", 5): 3, ("train", "policy_version", 12): 2,
    }  # fmt: skip
    assert not Dump.objects.exclude(state=Dump.State.INDEXED).exists()


def test_equal_rows_in_two_shards_of_a_data_set_are_two_samples(node: Path) -> None:
    """As Hugging Face's datasets saved twelve, of which a group stands half in one shard and half in the other."""
    saved = node / "train"
    shutil.copytree(DUMPS / "others/saved", saved, ignore=shutil.ignore_patterns("*.expected.json"))
    columns = {"features": {"prompt": {"_type": "List"}, "completion": {"_type": "Value"}}}
    for name in ("dataset_info.json", "state.json"):
        (saved / name).write_text(json.dumps(columns))
    assert imported(node) == 0
    assert steps() == {("train", "global_step", 3): 12}
    assert set(Dump.objects.values_list("producer", flat=True)) == {"00000-of-00002", "00001-of-00002"}
    assert not Dump.objects.exclude(state=Dump.State.INDEXED).exists()
