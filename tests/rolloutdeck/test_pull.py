"""`rolloutdeck pull` against the real server: pinned steps lie where verl's own code looks, byte for byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application

from dashboard.door import Door
from rolloutdeck.cli import main
from rolloutdeck.replay_folder import MANIFEST
from rolloutdeck.safe.batch import open_batch
from rollouts import blobs, index, pins, plans, verdicts
from rollouts.models import Artifact, Binding, Flag, Pin, Project, Run, Sample
from tests import make
from tests.dashboard.serve import Site, served
from tests.rollouts.artifacts import brought, meta, registered
from tests.rollouts.pushing import generation, indexed, line, rows
from tests.rollouts.skipped import ASYNC, COLOCATED, V0, V1, V2, files_of

pytestmark = pytest.mark.django_db(transaction=True)

FACTS = {"prompts": 8, "rows": 32, "samples_per_prompt": 4, "max_prompt_length": 128, "max_response_length": 256}
CONFIG = {
    "trainer": {"experiment_name": "grpo-2", "project_name": "math", "use_v1": False},
    "actor_rollout_ref": {"rollout": {"n": 4}},
    "data": {"max_prompt_length": 128, "max_response_length": 256, "train_batch_size": 8},
}
TREE = "grpo-2_math/GBS8_N4_in128_out256"
Ask = Callable[..., int]


@pytest.fixture
def site(transactional_db: None) -> Iterator[Site]:
    django = get_asgi_application()
    with served(Door(django, django)) as running:
        yield running


@pytest.fixture
def key(owner: User, project: Project) -> str:
    return make.token(owner, "ingest", "read", on=project)


@pytest.fixture
def old(project: Project) -> Run:
    return make.run(project, "grpo-1")


@pytest.fixture
def new(project: Project) -> Run:
    return make.run(project, "grpo-2", config=CONFIG)


@pytest.fixture
def pull(site: Site, key: str, tmp_path: Path) -> Ask:
    def ask(*words: str, run: str = "grpo-2") -> int:
        told = ["pull", "--project", "math", "--run", run, "--into", str(tmp_path / "into"), "--trainer", "verl"]
        return main([*told, *words, "--url", f"http://127.0.0.1:{site.port}", "--token", key])

    return ask


def pinned(run: Run, step: int, by: User, path: Path = V0, role: str = "rollout", **facts: Any) -> Pin:
    """A step whose files are those of `path`; its marker says the step, so that no two steps are one artifact."""
    kind = "feed_index" if role == "async_rollout" else "global_step"
    files = {name: data if name.endswith(("dp", "pt")) else meta(step) for name, data in files_of(path).items()}
    told = {"role": role, "step_kind": kind, "facts": {"role": role, **FACTS, **facts}}
    verdicts.check(brought(registered(run, step, files, **told), files).pk)
    return pins.pin(run, step, by, step_kind=kind)[0]


def plan(by: User, *entries: tuple[Pin, int], action: str = "cache", **more: Any) -> None:
    project = entries[0][0].project
    last = plans.current(project)
    plans.save(project, "default", by, if_match=last.number if last else 0, action=action, entries=entries, **more)


def found(into: Path) -> dict[str, str]:
    """Path below the folder -> sha256, without our own list."""
    files = [path for path in into.rglob("*") if path.is_file() and path.name != MANIFEST]
    return {str(path.relative_to(into)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def dumped(path: Path, *folders: str) -> dict[str, str]:
    """What lies in these folders when each has the files of step 1."""
    files = {name: data if name.endswith(("dp", "pt")) else meta(1) for name, data in files_of(path).items()}
    return {f"{folder}/{name}": hashlib.sha256(data).hexdigest() for folder in folders for name, data in files.items()}


def test_a_pinned_step_lies_at_its_target_byte_for_byte_and_the_flags_say_so(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 1, owner), 3))
    assert pull() == 0
    assert found(tmp_path / "into") == dumped(V0, f"{TREE}/3")
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "skip.rollout.enable=True",
        f"skip.rollout.dump_dir={tmp_path / 'into'}",
        "'skip.rollout.steps=[3]'",
        "skip.rollout.action=cache",
    ]
    assert "Step 3 replays step 1 of grpo-1." in told.err
    assert "ground truth, data source and uid from the live batch" in told.err
    assert f"ROLLOUTDECK_RUN_ID={new.uid}" in told.err
    assert str(Binding.objects.get(run=new).revision) == "default@1"


def test_the_list_beside_the_steps_says_whose_they_are(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path
) -> None:
    plan(owner, (pinned(old, 1, owner), 3))
    pull()
    told = json.loads((tmp_path / "into" / MANIFEST).read_text())
    assert (told["plan"], told["run"], told["project"], told["trainer"]) == ("default@1", new.uid, "math", "verl")
    assert told["files"] == found(tmp_path / "into")


def test_repeat_is_laid_out_per_step_as_one_file(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 1, owner), 2), action="repeat")
    assert pull("--steps", "5") == 0
    assert found(tmp_path / "into") == dumped(V0, *(f"{TREE}/{step}" for step in (2, 3, 4, 5)))
    assert len({path.stat().st_ino for path in tmp_path.rglob("gen_batch.dp")}) == 1
    assert "'skip.rollout.steps=[2,3,4,5]'" in capsys.readouterr().out


def test_a_v1_step_keeps_its_inner_folders(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 1, owner, V1, "rollout_tq", parameter_sync_step=1), 1))
    assert pull("--set", "trainer.use_v1=True") == 0
    assert found(tmp_path / "into") == dumped(V1, f"{TREE}/1")
    assert "skip.rollout_tq.enable=True" in capsys.readouterr().out


def test_a_fully_async_prompt_lies_at_its_feed_index(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 1, owner, ASYNC, "async_rollout", prompts=1, rows=4), 7))
    assert pull("--set", "async_training.require_batches=1") == 0
    assert found(tmp_path / "into") == dumped(ASYNC, "grpo-2_math/GBS1_N4_in128_out256/7")
    assert "'skip.async_rollout.steps=[7]'" in capsys.readouterr().out


def test_verl_0_8_gets_its_own_folders(
    pull: Ask, old: Run, project: Project, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {**CONFIG, "actor_rollout_ref": {"rollout": {"n": 4, "skip": {"enable": False}}}}
    make.run(project, "older", config=config)
    plan(owner, (pinned(old, 1, owner, V2), 1))
    assert pull(run="older") == 0
    assert found(tmp_path / "into") == dumped(V2, f"{TREE}/genstep_000001")
    assert "actor_rollout_ref.rollout.skip.max_dump_step=1" in capsys.readouterr().out


def test_a_file_that_is_not_what_its_name_says_is_not_put(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"gen_batch.dp": files_of(V1)["0/tq_batch.pt"], "meta.json": meta(1)}
    verdicts.check(brought(registered(old, 1, files, facts={"role": "rollout", **FACTS}), files).pk)
    plan(owner, (pins.pin(old, 1, owner)[0], 3))
    assert pull() == 2
    assert "gen_batch.dp is no gen_batch.dp: it is tq_batch." in capsys.readouterr().err


def test_settings_on_the_command_line_name_the_folder(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 1, owner), 3))
    assert pull("--set", "trainer.experiment_name=other", "data.gen_batch_size=8") == 0
    assert found(tmp_path / "into") == dumped(V0, "other_math/GBS8_N4_in128_out256/3")
    assert "trainer.experiment_name=other" in capsys.readouterr().err


def test_a_config_that_names_no_folder_is_asked_for(
    pull: Ask, old: Run, project: Project, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make.run(project, "bare", config={"data": {"train_batch_size": 8}})
    plan(owner, (pinned(old, 1, owner), 3))
    assert pull(run="bare") == 2
    told = capsys.readouterr().err
    assert "data.max_response_length, trainer.experiment_name, trainer.project_name; give them with --set" in told
    assert not (tmp_path / "into").exists()


def test_a_run_of_which_nothing_is_known_is_taken_to_be_like_the_pinned_one_under_its_own_name(
    pull: Ask, new: Run, project: Project, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(new, 1, owner), 3))
    assert pull(run="grpo-3") == 0
    assert found(tmp_path / "into") == dumped(V0, "grpo-3_math/GBS8_N4_in128_out256/3")
    told = capsys.readouterr().err
    assert "taken that it has the settings of grpo-2, under its own name" in told
    assert "trainer.experiment_name=grpo-3 trainer.project_name=math data.train_batch_size=8" in told


def test_without_any_config_the_pinned_batch_tells_its_shape(
    pull: Ask, old: Run, project: Project, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 1, owner, V1, "rollout_tq", parameter_sync_step=1), 3))
    assert pull("--set", "trainer.experiment_name=other", run="grpo-3") == 0
    assert found(tmp_path / "into") == dumped(V1, "other_math/GBS8_N4_in128_out256/3")
    assert "taken that it has batches like grpo-1" in capsys.readouterr().err


def test_a_run_that_has_not_begun_is_made_with_what_it_will_be_started_with(
    pull: Ask, old: Run, project: Project, owner: User, tmp_path: Path
) -> None:
    plan(owner, (pinned(old, 1, owner), 3))
    (tmp_path / "next.json").write_text(json.dumps(CONFIG))
    assert pull("--config", str(tmp_path / "next.json"), run="grpo-9") == 0
    made = Run.objects.get(name="grpo-9")
    assert made.config["trainer.experiment_name"] == "grpo-2"
    assert Binding.objects.filter(run=made).exists()


def test_a_run_that_pull_made_can_be_pulled_for_again(pull: Ask, old: Run, owner: User, tmp_path: Path) -> None:
    plan(owner, (pinned(old, 1, owner), 3))
    for _ in range(2):
        assert pull("--set", "trainer.experiment_name=other", run="grpo-9") == 0
    assert found(tmp_path / "into") == dumped(V0, "other_math/GBS8_N4_in128_out256/3")


def test_a_role_of_another_trainer_is_said_and_nothing_is_put(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 1, owner, V1, "rollout_tq"), 3))
    assert pull() == 2
    told = capsys.readouterr().err
    assert "a rollout_tq dump of the V1 trainer; this run's V0 trainer reads rollout only" in told
    assert "Nothing of the plan default@1 can be replayed" in told
    assert not (tmp_path / "into").exists()
    assert not Binding.objects.exists()


def test_a_step_that_does_not_fit_is_left_to_be_generated_or_stops(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = (pinned(old, 1, owner, rows=64), 2), (pinned(old, 2, owner), 3)
    plan(owner, *entries)
    assert pull() == 0
    assert {path.parent.name for path in tmp_path.rglob("gen_batch.dp")} == {"3"}
    assert "Target step 2 (step 1 of grpo-1) is left out: rows: 64 pinned, 32 asked for." in capsys.readouterr().err
    Binding.objects.all().delete()
    plan(owner, *entries, on_mismatch="stop")
    assert pull() == 2
    assert "the plan default@2 says to stop then" in capsys.readouterr().err


def test_a_dump_that_would_end_the_trainer_is_mended_and_that_is_said(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 3, owner, COLOCATED), 3), (pinned(old, 4, owner, COLOCATED), 5))
    assert pull() == 0
    told = capsys.readouterr().err
    assert "gen_batch.dp of step 3 of grpo-1 is replayed without uid: V0 would end on them." in told
    assert "of step 4 of grpo-1 is replayed without uid, data_source, reward_model, extra_info" in told
    lying = found(tmp_path / "into")
    theirs = dumped(COLOCATED, "x")["x/gen_batch.dp"]
    assert len({theirs, *(lying[f"{TREE}/{step}/gen_batch.dp"] for step in (3, 5))}) == 3
    assert json.loads((tmp_path / "into" / MANIFEST).read_text())["files"] == lying


def test_bytes_that_are_elsewhere_are_said_to_be(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registered(old, 1, files_of(V0), facts={"role": "rollout", **FACTS})
    plan(owner, (pins.pin(old, 1, owner)[0], 3))
    assert pull() == 2
    assert "The files of step 1 of grpo-1 are not on the server yet (waiting)" in capsys.readouterr().err
    assert not (tmp_path / "into").exists()


def test_an_unsafe_dump_is_not_given_to_a_trainer(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"gen_batch.dp": b"cos\nsystem\n(S'true'\ntR.", "meta.json": b"{}"}
    artifact = brought(registered(old, 1, files, facts={"role": "rollout", **FACTS}), files)
    verdicts.check(artifact.pk)
    plan(owner, (pins.pin(old, 1, owner)[0], 3))
    assert pull() == 2
    assert "its files are unsafe" in capsys.readouterr().err
    assert not list(tmp_path.rglob("gen_batch.dp"))


def test_what_the_server_calls_ready_is_judged_again_here(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"gen_batch.dp": b"cos\nsystem\n(S'true'\ntR.", "meta.json": b"{}"}
    artifact = brought(registered(old, 1, files, facts={"role": "rollout", **FACTS}), files)
    Artifact.objects.filter(pk=artifact.pk).update(state=Artifact.State.READY)
    plan(owner, (pins.pin(old, 1, owner)[0], 3))
    assert pull() == 2
    assert "gen_batch.dp is not safe to load" in capsys.readouterr().err
    assert not list(tmp_path.rglob("gen_batch.dp"))
    assert not Binding.objects.exists()


def test_bytes_that_rotted_on_the_server_are_not_put(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 1, owner), 3))
    blob = blobs.path(old.project_id, hashlib.sha256((V0 / "gen_batch.dp").read_bytes()).hexdigest())
    blob.chmod(0o644)
    rotten = bytearray(blob.read_bytes())
    rotten[len(rotten) // 2] ^= 1
    blob.write_bytes(rotten)
    assert pull() == 2
    assert "has the sha256" in capsys.readouterr().err
    assert not list(tmp_path.rglob("gen_batch.dp"))


def test_a_folder_with_other_files_is_refused_and_nothing_is_bound(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "thesis.tex").write_text("x")
    plan(owner, (pinned(old, 1, owner), 3))
    assert pull() == 2
    assert "is not empty and was not written by `pull`" in capsys.readouterr().err
    assert not Binding.objects.exists()


def test_a_second_pull_follows_the_plan_and_fetches_only_what_is_new(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pin = pinned(old, 1, owner)
    plan(owner, (pin, 3))
    pull()
    plan(owner, (pin, 4))
    assert pull() == 0
    assert found(tmp_path / "into") == dumped(V0, f"{TREE}/4")
    assert "0 bytes fetched" in capsys.readouterr().err


def test_a_run_that_has_begun_keeps_its_revision(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pin = pinned(old, 1, owner)
    plan(owner, (pin, 3))
    pull()
    indexed(new, line(generation(step=1)))
    plan(owner, (pin, 4))
    assert pull() == 0
    assert found(tmp_path / "into") == dumped(V0, f"{TREE}/3")
    capsys.readouterr()
    assert pull("--plan", "default@2") == 2
    assert "is bound to default@1" in capsys.readouterr().err


def flag(run: Run, by: User, *records: int) -> None:
    """The samples of these rows of the step's own file are flagged bad."""
    for dump in run.dumps.filter(state="received"):
        index.index(dump.pk)
    for sample in Sample.objects.filter(step__run=run, ordinal__in=records):
        Flag.objects.create(run=run, sample=sample.id, step=sample.step, user=by, label="bad")


def test_flagged_rows_that_no_file_has_leave_the_pin_out(
    pull: Ask, old: Run, new: Run, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    indexed(old, line(generation(step=1)))
    plan(owner, (pinned(old, 1, owner), 3), exclude_flagged=True)
    assert pull() == 0
    sample = rows(old)[0]
    Flag.objects.create(run=old, sample=sample.id, step=sample.step, user=owner, label="bad")
    assert pull() == 2
    said = "is left out: 1 of its 1 flagged samples can't be found in its files, so they can't be left out."
    assert said in capsys.readouterr().err


def left(folder: Path) -> list[list[int]]:
    """The token ids of the responses in the one batch below a folder."""
    (path,) = (file for file in folder.rglob("*") if file.suffix in (".dp", ".pt") and ".rolloutdeck" not in str(file))
    with open_batch(path) as batch:
        return [batch.tokens(row).response_ids for row in range(batch.rows)]


def test_v1_replays_a_step_without_the_prompts_that_hold_a_flagged_row(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 1, owner, V1, "rollout_tq"), 3), exclude_flagged=True)
    flag(old, owner, 0, 9)
    assert pull("--set", "trainer.use_v1=true") == 0
    said = capsys.readouterr().err
    assert (
        "without 2 of its 8 prompts (8 of 32 rows), in which 2 flagged samples are: all answers to a prompt go" in said
    )
    assert "V1 repeats prompts until its batch is full." in said
    assert "prompts: 6 pinned, 8 asked for" in said
    with open_batch(V1 / "0/tq_batch.pt") as batch:
        gone = {batch.keys[row].split("_")[0] for row in (0, 9)}
        keep = [row for row in range(batch.rows) if batch.keys[row].split("_")[0] not in gone]
        assert left(tmp_path / "into") == [batch.tokens(row).response_ids for row in keep]
    (told,) = json.loads((tmp_path / "into" / MANIFEST).read_text())["repaired"]
    assert "The file is written by Rolloutdeck" in told


def test_v0_takes_a_shorter_batch_only_where_the_run_asks_for_so_few(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 1, owner), 1), exclude_flagged=True)
    flag(old, owner, 5, 6)
    assert pull() == 2
    said = capsys.readouterr().err
    assert "rows: 28 pinned, 32 asked for" in said
    assert "without its flagged rows (V0 takes exactly as many rows as its batch has)" in said
    assert pull("--set", "data.train_batch_size=7") == 0
    said = capsys.readouterr().err
    assert "without 1 of its 8 prompts (4 of 32 rows), in which 2 flagged samples are" in said
    assert "ground truth, data source and uid from the live batch" in said  # whose rows stand elsewhere now
    assert len(left(tmp_path / "into")) == 28


def test_v0_gets_no_shorter_batch_either_where_nobody_knew_how_many_prompts_it_has(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 3, owner, COLOCATED, prompts=None), 1), exclude_flagged=True)
    flag(old, owner, 1)
    assert pull() == 2
    assert "has 2 rows without its flagged prompts, and V0 takes 32" in capsys.readouterr().err
    assert not (tmp_path / "into" / TREE / "1").exists()


def test_a_plan_that_replays_what_is_flagged_gives_the_very_bytes(
    pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path
) -> None:
    plan(owner, (pinned(old, 1, owner), 1))
    flag(old, owner, 5, 6)
    assert pull() == 0
    assert found(tmp_path / "into") == dumped(V0, f"{TREE}/1")


def test_a_step_of_which_every_prompt_is_flagged_is_generated(
    pull: Ask, old: Run, new: Run, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(owner, (pinned(old, 1, owner), 1), exclude_flagged=True)
    flag(old, owner, *range(0, 32, 4))
    assert pull() == 2
    assert "is left out: all its prompts are flagged" in capsys.readouterr().err


def test_a_second_pull_follows_the_flags(pull: Ask, old: Run, new: Run, owner: User, tmp_path: Path) -> None:
    plan(owner, (pinned(old, 1, owner, V1, "rollout_tq"), 3), exclude_flagged=True)
    flag(old, owner, 0)
    assert pull("--set", "trainer.use_v1=true") == 0
    assert len(left(tmp_path / "into")) == 28
    Flag.objects.all().delete()
    assert pull("--set", "trainer.use_v1=true") == 0
    assert len(left(tmp_path / "into")) == 32


def test_an_empty_plan_says_how_to_fill_it(pull: Ask, new: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert pull() == 2
    assert "pin a step and add it to the plan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"), [(("--trainer", "trl"), "no trainer 'trl'"), (("--steps", "0"), "at least 1")]
)
def test_what_cannot_be_meant_is_told(
    pull: Ask, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull(*words) == 2
    assert said in capsys.readouterr().err
