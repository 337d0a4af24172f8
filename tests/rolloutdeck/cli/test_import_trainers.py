"""Dump folders of TRL, slime and ROLL that `import` and `watch` bring to a server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rolloutdeck.cli.folders import import_report
from rollouts.indexing import indexer
from rollouts.metrics import list_metric_names
from rollouts.models import Dump, Run, Sample, Step
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.support.step_files import run_import
from tests.rolloutdeck.watch.conftest import deck, start_watch, trainer
from tests.rolloutdeck.watch.trainer import StartWatch, Trainer, run_turns

__all__ = ["deck", "trainer", "start_watch"]

DATA = Path(__file__).parents[2] / "data"
Steps = Callable[[], dict[tuple[str, str, int], int]]


def copy_tree(tree: str, into: Path) -> Path:
    return Path(shutil.copytree(DATA / tree, into / Path(tree).name, ignore=shutil.ignore_patterns("*.json", "*.md")))


def index_steps() -> dict[tuple[str, str, int], int]:
    """Indexes what has arrived. Returns the number of samples by split, step kind and step."""
    for dump in Dump.objects.filter(state=Dump.State.RECEIVED).order_by("pk"):
        indexer.index_dump(dump.pk)
    return {(item.split, item.step_kind, item.step): item.samples for item in Step.objects.order_by("pk")}


@pytest.mark.django_db(transaction=True)
def test_rollouts_of_slime_are_imported_with_their_evals_and_advantages(node: Path) -> None:
    assert run_import(copy_tree("slime", node)) == 0
    assert index_steps() == {
        ("eval", "rollout_id", 0): 16, ("train", "rollout_id", 0): 32, ("train", "rollout_id", 1): 32,
        ("train", "rollout_id", 2): 32,
    }  # fmt: skip
    assert Run.objects.get().framework == "slime"
    assert Sample.objects.filter(step__step=0, step__split="train", advantage=None).count() == 0


@pytest.mark.django_db(transaction=True)
def test_the_training_data_of_each_rank_of_miles_gives_its_samples_their_advantages(node: Path) -> None:
    assert run_import(copy_tree("miles", node), "--artifacts", "never") == 0
    assert index_steps() == {("eval", "rollout_id", 0): 1, ("train", "rollout_id", 0): 4}
    assert Sample.objects.filter(step__split="train", advantage=None).count() == 0


@pytest.mark.django_db(transaction=True)
def test_completions_and_columnar_dumps_are_imported_by_step(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_import(copy_tree("trl/scripted", node)) == 0
    assert index_steps() == {("train", "global_step", 2): 8, ("train", "global_step", 3): 8}
    assert "an eval into the train file" in capsys.readouterr().err
    assert run_import(copy_tree("roll", node), "--run", "agents") == 0
    assert index_steps()["train", "global_step", 1] == 36  # 32 of RLVR, which the batch joins, and 4 of agents


@pytest.mark.django_db(transaction=True)
def test_texts_and_summaries_of_tinker_are_one_run_with_its_curves(node: Path) -> None:
    assert run_import(Path(shutil.copytree(DATA / "tinker", node / "sums"))) == 0
    assert index_steps() == {
        ("eval", "global_step", 0): 1, ("eval", "global_step", 2): 2, ("train", "global_step", 0): 6,
        ("train", "global_step", 1): 6,
    }  # fmt: skip
    run = Run.objects.get()
    assert run.framework == "tinker"  # and not the first file, which is one of metrics
    assert "env/all/reward/total" in list_metric_names(run)


@pytest.mark.django_db(transaction=True)
def test_training_batches_and_evaluations_are_imported_with_the_results_of_the_evaluations(node: Path) -> None:
    assert run_import(copy_tree("skyrl", node)) == 0
    assert index_steps() == {
        ("eval", "global_step", 3): 4,
        ("train", "global_step", 3): 4,
        ("train", "global_step", 7): 2,
    }
    run = Run.objects.get()
    assert run.framework == "skyrl" and {"eval/all/avg_score", "eval/all/pass_at_2"} <= set(list_metric_names(run))
    assert Sample.objects.filter(step__split="eval", score=1.0).count() == 2


def test_watch_sends_the_new_lines_of_metrics_and_each_state_of_a_checkpoint(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    lines = (DATA / "tinker/metrics.jsonl").read_bytes().splitlines(keepends=True)
    state = (DATA / "metrics/trl/checkpoint-4/trainer_state.json").read_text()
    trainer.write("metrics.jsonl", lines[0].decode())
    watch = start_watch()
    run_turns(watch)
    trainer.write("metrics.jsonl", lines[1].decode(), "a")
    trainer.write("checkpoint-4/trainer_state.json", state)
    run_turns(watch)
    assert sorted(deck.bodies()) == sorted([*lines, state.encode()])
    assert [query.get("format") for _, query, _ in deck.dumps] == ["metrics", "metrics", "trainer-state"]


def test_rows_that_add_to_samples_are_not_counted_as_samples() -> None:
    values = [("slime-rollout", 0), ("slime-train", 0), ("verl-metrics", None)]
    dumps = [{"format": name, "step": step, "rows": 32} for name, step in values]
    assert import_report.describe_indexed(dumps) == "32 samples, 32 more rows of the same samples, 32 metric points"
    assert import_report.describe_indexed(dumps[1:2]) == "32 samples"
    assert import_report.describe_indexed(dumps[2:]) == "32 metric points"
    assert import_report.describe_indexed([]) == "0 samples"


def test_watch_sends_a_parquet_file_once_it_is_whole_and_again_when_an_eval_wrote_over_it(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    trees = ("scripted", "eval_mixed_with_train")
    train_file, eval_file = (DATA / "trl" / tree / "completions/completions_00003.parquet" for tree in trees)
    path = trainer.write("completions/completions_00003.parquet", "")

    def overwrite(body: bytes) -> None:
        trainer.clock += 10
        path.write_bytes(body)
        os.utime(path, (trainer.clock, trainer.clock))

    watch = start_watch()
    overwrite(train_file.read_bytes()[:-9])
    run_turns(watch)
    assert deck.dumps == []
    for full in (train_file, eval_file):
        overwrite(full.read_bytes())
        run_turns(watch)
    assert deck.bodies() == [train_file.read_bytes(), eval_file.read_bytes()]
    assert deck.steps() == [("files", 3), ("files", 3)]


def test_watch_skips_a_table_next_to_the_files_of_a_trainer(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    body = (DATA / "trl/scripted/completions/completions_00003.parquet").read_bytes()
    trainer.write("tap.jsonl", '{"step": 4, "prompt": "2+2?", "completion": "4", "reward": 1}\n')
    trainer.write("completions/completions_00003.parquet", "").write_bytes(body)
    watch = start_watch()
    run_turns(watch)
    assert deck.bodies() == [body]


@pytest.mark.django_db(transaction=True)
def test_eval_sets_of_one_tinker_iteration_are_stored_next_to_each_other(node: Path) -> None:
    """Their rows have no text, so only the name of the set tells them apart."""
    iteration = node / "iteration_000000"
    iteration.mkdir()
    source = (DATA / "tinker/iteration_000000/eval_test_rollout_summaries.jsonl").read_text()
    (iteration / "eval_test_rollout_summaries.jsonl").write_text(source)
    other = source.replace('"eval/test"', '"eval/other"').replace('"total_reward": 0.0', '"total_reward": 1.0')
    (iteration / "eval_other_rollout_summaries.jsonl").write_text(other)
    assert run_import(node) == 0
    assert index_steps() == {("eval", "global_step", 0): 2}
    assert sorted(Sample.objects.values_list("score", flat=True)) == [0.0, 1.0]
