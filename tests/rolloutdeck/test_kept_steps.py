"""Steps that can be loaded again, from a trainer's disk to a real server: import, watch, `log_artifact`, and plans."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application

from dashboard.door import Door
from rolloutdeck import artifact, cli, gather, opening, shelf, watch, wire
from rolloutdeck.commands.watch import Follow
from rolloutdeck.gather import Keeping
from rolloutdeck.http import Server
from rolloutdeck.launch import host_name
from rolloutdeck.push import NotNow, Target
from rolloutdeck.run import Run as TrainersRun
from rolloutdeck.scan import Choice
from rolloutdeck.watch import Root
from rollouts import blobs, pins, plans, verdicts
from rollouts.models import Artifact, Project, Replay, Run
from tests import make
from tests.dashboard.serve import Site, served
from tests.rolloutdeck.receiver import until
from tests.rollouts.skipped import ASYNC, TOKENIZER, V0, V1, ready, worked

pytestmark = pytest.mark.django_db(transaction=True)

TREE = "exp_proj/GBS8_N4_in128_out256"


@pytest.fixture
def site(transactional_db: None) -> Iterator[Site]:
    django = get_asgi_application()
    with served(Door(django, django)) as running:
        yield running


@pytest.fixture
def secret(owner: User, project: Project) -> str:
    return make.token(owner, "ingest", "read", on=project)


@pytest.fixture
def node(site: Site, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trainer's disk. This process talks to the server with a home of its own, and waits for nothing."""
    names = {"URL": f"http://127.0.0.1:{site.port}", "TOKEN": secret, "SPOOL": str(tmp_path / "spool")}
    for name, value in {**names, "PROJECT": "math", "RUN": "grpo", "ATTEMPT": "first"}.items():
        monkeypatch.setenv(f"ROLLOUTDECK_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("LOOK_SECONDS", "ASK_SECONDS", "QUIET_SECONDS"):
        monkeypatch.setattr(gather, name, 0.0)
    monkeypatch.setattr(watch, "QUIET_SECONDS", 0.0)
    artifact._hashes.clear()
    (tmp_path / "node").mkdir()
    return tmp_path / "node"


def step(node: Path, number: int, source: Path = V0, tree: str = TREE) -> Path:
    folder = node / tree / str(number)
    shutil.copytree(source, folder)
    if source == V0:
        (folder / "meta.json").write_text(json.dumps({"global_steps": number}))
    return folder


def checked() -> list[str]:
    """A worker checks what has arrived; the states of all artifacts afterwards."""
    for row in Artifact.objects.order_by("pk"):
        verdicts.check(row.pk)
    return list(Artifact.objects.order_by("pk").values_list("state", flat=True))


def bytes_of(row: Artifact) -> dict[str, bytes]:
    """What a trainer would be given."""
    found = {}
    for name, file in row.files.items():
        with blobs.open_blob(row.run.project_id, file["sha256"]) as stored:
            found[name] = stored.read()
    return found


def on_disk(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in artifact.below(folder)}


def imported(*words: object) -> int:
    return cli.main(["import", *map(str, words), "--no-wait"])


# --- import


def test_import_sends_whole_steps_at_once_byte_for_byte(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = step(node, 1), step(node, 2)
    step(node, 3).joinpath("meta.json").unlink()
    assert imported(node) == 0
    rows = list(Artifact.objects.order_by("step"))
    assert [(row.step, row.role, row.step_kind, row.attempt.key) for row in rows] == [
        (1, "rollout", "global_step", "files"),
        (2, "rollout", "global_step", "files"),
    ]
    assert [bytes_of(row) for row in rows] == [on_disk(first), on_disk(second)]
    assert checked() == ["ready", "ready"]
    assert rows[0].facts["rows"] == 32 and rows[0].facts["samples_per_prompt"] == 4
    said = capsys.readouterr()
    assert "to replay" in said.out and "1-2" in said.out
    assert "unfinished rollout-skip steps" in said.err and "GBS8_N4_in128_out256/3" in said.err


def test_the_same_import_again_sends_nothing(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step(node, 1)
    imported(node)
    capsys.readouterr()
    imported(node)
    assert Artifact.objects.count() == 1
    row = next(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("to replay"))
    assert row == ["to", "replay", "1", "1", "1"]


def test_import_of_samples_and_steps_counts_each_apart(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step(node, 1)
    (node / "rollout").mkdir()
    (node / "rollout/1.jsonl").write_text('{"input": "1+1", "output": "2", "score": 1.0, "step": 1}\n')
    assert imported(node) == 0
    words = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert "train" in words and "to" in words
    assert Run.objects.get().framework == "verl"


def test_import_on_pin_tells_and_keeps_the_bytes_at_home(node: Path) -> None:
    folder = step(node, 1)
    assert imported(node, "--artifacts", "on-pin") == 0
    row = Artifact.objects.get()
    assert (row.state, row.missing) == ("waiting", 2)
    assert row.origin == {
        "host": host_name(),
        "path": str(folder),
        "command": f"rolloutdeck import {folder} --project math --run grpo --attempt files",
    }


def test_the_command_that_the_server_shows_sends_the_bytes(node: Path) -> None:
    folder = step(node, 1)
    imported(node, "--artifacts", "on-pin")
    words = Artifact.objects.get().origin["command"].split()
    assert words[0] == "rolloutdeck" and cli.main([*words[1:], "--no-wait"]) == 0
    assert Artifact.objects.count() == 1 and bytes_of(Artifact.objects.get()) == on_disk(folder)


def test_import_never_leaves_the_steps_out_and_says_so(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step(node, 1)
    assert imported(node, "--artifacts", "never") == 2
    assert not Artifact.objects.exists() and "--artifacts never" in capsys.readouterr().err


def test_steps_of_a_run_that_is_there_do_not_end_it(node: Path, project: Project) -> None:
    run = make.run(project, "grpo", uid="u1")
    step(node, 1)
    imported(node)
    run.refresh_from_db()
    assert run.outcome == ""


def test_import_waits_for_the_verdict_and_says_what_is_not_safe(
    node: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rolloutdeck.commands import import_

    step(node, 1)
    step(node, 5).joinpath("gen_batch.dp").write_bytes(b"\x80\x04cposix\nsystem\n(Vtrue\ntR.")
    monkeypatch.setattr(import_.time, "sleep", lambda seconds: (checked(), worked(Run.objects.get())))
    assert cli.main(["import", str(node)]) == 1
    said = capsys.readouterr()
    assert "Can be replayed: 1 step." in said.out
    assert "Step 5 is unsafe:" in said.err


def test_the_tokenizer_is_kept_with_the_run_and_marks_its_steps(node: Path) -> None:
    step(node, 1)
    imported(node, "--tokenizer", TOKENIZER)
    tokenizer, found = Artifact.objects.get(role="tokenizer"), Artifact.objects.get(role="rollout")
    assert (tokenizer.step, list(tokenizer.files)) == (0, ["tokenizer.json"])
    assert bytes_of(tokenizer) == {"tokenizer.json": (TOKENIZER / "tokenizer.json").read_bytes()}
    assert len(tokenizer.facts["tokenizer"]) == 64 and found.facts["tokenizer"] == tokenizer.facts["tokenizer"]


def test_a_path_without_a_tokenizer_is_refused_in_a_sentence(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step(node, 1)
    assert imported(node, "--tokenizer", node) == 2
    assert f"There is no tokenizer.json at {node}." in capsys.readouterr().err
    assert not Run.objects.exists()


def test_a_large_file_travels_in_parts(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "PART_BYTES", 100_000)
    folder = step(node, 1)
    imported(node)
    assert bytes_of(Artifact.objects.get()) == on_disk(folder)


# --- watch


@pytest.fixture
def following(site: Site, secret: str, node: Path) -> Callable[..., Follow]:
    """A new process's `watch` of the node's disk."""

    def start(mode: str = "on-pin", port: int = site.port) -> Follow:
        target = Target(Server(f"http://127.0.0.1:{port}", secret), "math", "grpo", "files")
        return Follow(target, [Root(node)], node, Choice(), keeping=Keeping(mode))

    return start


Following = Callable[..., Follow]


def turns(follow: Follow, count: int = 3, *, looking: bool = True) -> None:
    for _ in range(count):
        follow.gatherer._look_at = 0.0 if looking else time.monotonic() + 60
        follow.turn()


def pinned(number: int, owner: User) -> Any:
    return pins.pin(Run.objects.get(), number, owner)[0]


def test_watch_tells_of_whole_steps_and_sends_nothing_before_a_pin(node: Path, following: Following) -> None:
    step(node, 1)
    step(node, 2, V1)
    follow = following()
    turns(follow)
    assert list(Artifact.objects.order_by("step").values_list("step", "role", "state")) == [
        (1, "rollout", "waiting"),
        (2, "rollout_tq", "waiting"),
    ]
    assert follow.pending == 0


def test_a_step_that_is_being_written_is_told_when_its_marker_is_there(node: Path, following: Following) -> None:
    folder = step(node, 1)
    marker = (folder / "meta.json").read_bytes()
    (folder / "meta.json").unlink()
    follow = following()
    turns(follow)
    assert not Artifact.objects.exists()
    (folder / "meta.json").write_bytes(marker)
    turns(follow, 1)
    assert not Artifact.objects.exists()  # it must stay as it is for another look
    turns(follow)
    assert Artifact.objects.get().step == 1


def test_a_pin_brings_the_bytes_of_its_step_and_of_no_other(node: Path, following: Following, owner: User) -> None:
    folder = step(node, 1)
    step(node, 2)
    follow = following()
    turns(follow)
    pinned(1, owner)
    turns(follow, 1)
    assert bytes_of(Artifact.objects.get(step=1)) == on_disk(folder)
    assert checked() == ["ready", "waiting"]
    assert list(Run.objects.get().pollers) == [host_name()]


def test_a_restarted_watch_reads_no_batch_again_and_still_sends(
    node: Path, following: Following, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = step(node, 1)
    turns(following())
    pinned(1, owner)
    artifact._hashes.clear()
    with monkeypatch.context() as patched:
        patched.setattr(artifact, "sha256_of", lambda *_: pytest.fail("hashed again"))
        patched.setattr(gather.trainers, "described", lambda *_: pytest.fail("read again"))
        turns(following())
    assert bytes_of(Artifact.objects.get()) == on_disk(folder)


def test_an_interrupted_file_goes_on_where_it_was(
    node: Path, following: Following, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "PART_BYTES", 100_000)
    folder = step(node, 1)
    follow = following()
    turns(follow)
    pinned(1, owner)
    spans: list[str] = []
    ask = follow.target.ask_run

    def breaking(method: str, path: str, **options: Any) -> Any:
        if span := options.get("headers", {}).get("Content-Range"):
            spans.append(span)
            if len(spans) == 3:
                raise NotNow("the server does not answer")
        return ask(method, path, **options)

    monkeypatch.setattr(follow.target, "ask_run", breaking)
    with pytest.raises(NotNow):
        follow.turn()
    assert Artifact.objects.get().state == "uploading"
    turns(follow)
    size = (folder / "gen_batch.dp").stat().st_size
    assert spans[:3] == [f"bytes */{size}", f"bytes 0-99999/{size}", f"bytes 100000-199999/{size}"]
    assert spans[3:5] == [f"bytes */{size}", f"bytes 100000-199999/{size}"]
    assert bytes_of(Artifact.objects.get()) == on_disk(folder)


def test_with_now_every_whole_step_is_sent(node: Path, following: Following) -> None:
    folder = step(node, 1)
    turns(following("now"))
    assert bytes_of(Artifact.objects.get()) == on_disk(folder)


def test_with_never_no_step_is_told(node: Path, following: Following) -> None:
    step(node, 1)
    turns(following("never"))
    assert not Artifact.objects.exists()


def test_a_file_that_changed_after_it_was_told_is_never_sent(
    node: Path, following: Following, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = step(node, 1)
    follow = following()
    turns(follow)
    pinned(1, owner)
    with (folder / "gen_batch.dp").open("ab") as file:
        file.write(b"x")
    turns(follow, 1, looking=False)
    row = Artifact.objects.get()
    assert row.state == "gone" and "changed since it was registered" in row.message
    assert str(folder / "gen_batch.dp") in capsys.readouterr().err


def test_the_server_gets_only_what_was_told_from_here(node: Path, following: Following) -> None:
    step(node, 1)
    follow = following()
    turns(follow)
    (told,) = follow.gatherer.shelf.artifacts
    other = "0" * 64
    follow.gatherer.shelf.want(
        [
            {"artifact": other, "path": "gen_batch.dp", "sha256": other, "bytes": 1, "received": 0},
            {"artifact": told, "path": "../../../../etc/passwd", "sha256": other, "bytes": 1, "received": 0},
            {"artifact": told, "path": "/etc/passwd"},
            "nonsense",
        ]
    )
    assert follow.gatherer.shelf.busy == 0


def test_prompts_of_a_fully_async_run_lie_on_their_own_axis(node: Path, following: Following) -> None:
    step(node, 41, ASYNC, "exp_proj/GBS1_N4_in128_out256")
    turns(following())
    row = Artifact.objects.get()
    assert (row.role, row.step_kind, row.step) == ("async_rollout", "feed_index", 41)


def test_a_tree_finds_the_run_that_has_nothing_but_kept_steps(node: Path) -> None:
    step(node, 4, tree="math/night/skip/exp_proj/GBS8_N4_in128_out256")
    tree = ["--tree", f"{node}/{{project}}/{{run}}/{{split}}"]
    assert cli.main(["watch", *tree, "--once", "--poll", "0.01", "--artifacts", "now"]) == 0
    row = Artifact.objects.get()
    assert (row.run.name, row.step, row.missing) == ("night", 4, 0)


def test_watch_once_ends_when_all_is_told(node: Path) -> None:
    step(node, 1)
    assert cli.main(["watch", str(node), "--once", "--poll", "0.01", "--tokenizer", str(TOKENIZER)]) == 0
    assert sorted(Artifact.objects.values_list("role", "missing")) == [("rollout", 2), ("tokenizer", 0)]


# --- in a trainer


@pytest.fixture
def training(node: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainersRun]:
    monkeypatch.setattr(wire, "HEARTBEAT_SECONDS", 0.05)
    run = opening.init()
    yield run
    run.finish(timeout=0)
    opening._runs.clear()


def test_log_artifact_names_the_files_and_copies_nothing(training: TrainersRun, node: Path, tmp_path: Path) -> None:
    folder = step(node, 7)
    started = time.perf_counter()
    training.log_artifact(folder, step=7, role="rollout", manifest={"facts": {"model": "qwen"}})
    assert time.perf_counter() - started < 0.5
    row = until(lambda: Artifact.objects.first())
    assert (row.step, row.role, row.state, row.attempt.key) == (7, "rollout", "waiting", "first")
    assert set(row.files) == {"gen_batch.dp", "meta.json"}
    assert row.facts["model"] == "qwen" and row.facts["rows"] == 32
    assert sum(path.stat().st_size for path in (tmp_path / "spool").rglob("*") if path.is_file()) < 10_000


def test_a_pinned_step_is_sent_by_the_training_process(training: TrainersRun, node: Path, owner: User) -> None:
    folder = step(node, 7)
    training.log_artifact(folder, step=7)
    until(lambda: Artifact.objects.first())
    pinned(7, owner)
    until(lambda: Artifact.objects.get().missing == 0)
    assert bytes_of(Artifact.objects.get()) == on_disk(folder)


def test_a_resumed_training_sends_what_its_earlier_process_told(
    node: Path, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_RUN_ID", "u7")
    monkeypatch.setattr(wire, "HEARTBEAT_SECONDS", 0.05)
    folder = step(node, 7)
    before = opening.init()
    before.log_artifact(folder, step=7)
    before.finish()
    pinned(7, owner)
    resumed = opening.init()
    resumed.log_artifact(step(node, 8), step=8)
    until(lambda: Artifact.objects.get(step=7).missing == 0)
    resumed.finish(timeout=0)
    opening._runs.clear()
    assert bytes_of(Artifact.objects.get(step=7)) == on_disk(folder)


def test_send_now_has_sent_when_the_run_is_finished(training: TrainersRun, node: Path) -> None:
    folder = step(node, 7)
    training.log_artifact(folder, step=7, send_now=True)
    training.finish()
    assert bytes_of(Artifact.objects.get()) == on_disk(folder)


def test_a_single_file_and_named_files_of_a_folder_are_artifacts_too(training: TrainersRun, node: Path) -> None:
    folder = step(node, 7)
    training.log_artifact(folder / "gen_batch.dp", step=7)
    training.log_artifact(folder, step=8, manifest={"files": ["meta.json"]})
    training.finish()
    assert {row.step: list(row.files) for row in Artifact.objects.all()} == {7: ["gen_batch.dp"], 8: ["meta.json"]}


def test_a_path_that_is_not_there_costs_only_itself(training: TrainersRun, node: Path) -> None:
    training.log_artifact(node / "nowhere", step=1)
    training.log_artifact(step(node, 2), step=2)
    training.log_artifact(node, step=3, role="no such role")
    training.finish()
    assert list(Artifact.objects.values_list("step", flat=True)) == [2]
    assert Run.objects.get().dropped


def planned(training: TrainersRun, owner: User, node: Path, target: int = 3) -> Any:
    """The default plan replays step 7 of another run at `target`."""
    other = make.run(Project.objects.get(), "source", uid="source")
    ready(other, V0, 7)
    pin, _ = pins.pin(other, 7, owner)
    plans.save(other.project, "default", owner, if_match=0, action="repeat", entries=[(pin, target)])
    return pin


def test_a_run_gets_its_plan_and_keeps_the_revision(training: TrainersRun, node: Path, owner: User) -> None:
    pin = planned(training, owner, node)
    plan = training.replay_plan(facts={"role": "rollout", "rows": 32})
    assert (plan.name, plan.revision, plan.action) == ("default", 1, "repeat")
    assert [plan.resolve(at) is not None for at in (1, 2, 3, 4)] == [False, False, True, True]
    entry = plan.resolve(3)
    assert entry and entry.pin == pin.pk and entry.source["step"] == 7 and not entry.refused
    [source] = entry.artifacts
    assert (source.role, source.state, set(source.files)) == ("rollout", "ready", {"gen_batch.dp", "meta.json"})
    assert {one.fact for one in entry.differences if one.unknown} >= {"tokenizer", "model"}
    training.log({"loss": 1.0}, step=1)
    until(lambda: Run.objects.get(name="grpo").metric_rows.exists())
    plans.save(pin.project, "default", owner, if_match=1, action="cache", entries=[])
    assert training.replay_plan().revision == 1


def test_a_plan_that_does_not_fit_says_why(training: TrainersRun, node: Path, owner: User) -> None:
    planned(training, owner, node)
    entry = training.replay_plan(facts={"role": "rollout_tq", "rows": 32}, bind=False).resolve(3)
    assert entry and entry.refused
    assert [(one.fact, one.pinned, one.asking) for one in entry.differences if one.verdict == "refuse"] == [
        ("role", "rollout", "rollout_tq")
    ]


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9", "http://name.invalid"])
def test_without_a_server_the_plan_is_empty_and_soon_there(
    training: TrainersRun, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_URL", url)
    started = time.monotonic()
    plan = training.replay_plan(timeout=1.0)
    assert not plan and plan.resolve(1) is None and time.monotonic() - started < 4


def test_a_plan_that_is_not_there_is_an_empty_one(training: TrainersRun) -> None:
    assert not training.replay_plan() and not training.replay_plan("nightly@4")


def test_what_came_of_a_step_stands_once(training: TrainersRun, node: Path, owner: User) -> None:
    pin = planned(training, owner, node)
    training.replay_plan()
    training.report_replay(step=3, outcome="hit", pin=pin.pk, rows=32, seconds=0.25)
    training.report_replay(step=3, outcome="hit", pin=pin.pk, rows=32, seconds=0.25)
    training.report_replay(step=4, outcome="refused", reason="another prompt")
    training.report_replay(step=5, outcome="maybe")
    training.finish()
    rows = Replay.objects.order_by("step").values_list("step", "outcome", "pin", "rows", "seconds", "reason")
    assert list(rows) == [(3, "hit", pin.pk, 32, 0.25, ""), (4, "refused", pin.pk, None, None, "another prompt")]


# --- plan


def test_the_plan_is_shown_with_its_verdict_for_a_run(
    training: TrainersRun, node: Path, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(training, owner, node)
    step(node, 1, V1)
    imported(node)
    capsys.readouterr()
    assert cli.main(["plan", "--project", "math", "--run", "grpo"]) == 1
    said = capsys.readouterr().out
    assert "Plan default@1: repeat, generate where a pin does not fit." in said
    assert "steps 3-7 replay the pin of 3" in said and "steps 1-2 generate" in said
    assert 'step 3: refuse: role is "rollout" in the pin, "rollout_tq" here' in said
    assert "step 7 of source" in said and "ready" in said


def test_a_plan_fits_as_json_and_without_a_run(
    training: TrainersRun, node: Path, owner: User, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_RUN")
    pin = planned(training, owner, node)
    assert cli.main(["plan", "--project", "math", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(entry["target_step"], entry["pin"]) for entry in told["entries"]] == [(3, pin.pk)]
    assert cli.main(["plan", "--project", "math", "--plan", "default@1", "--steps", "3"]) == 0
    assert "step 3 replays the pin of 3" in capsys.readouterr().out


def test_a_plan_is_shown_for_a_run_that_has_not_begun(
    training: TrainersRun, node: Path, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(training, owner, node)
    capsys.readouterr()
    assert cli.main(["plan", "--project", "math", "--run", "tomorrow"]) == 0
    said = capsys.readouterr()
    assert "steps 3-7 replay the pin of 3" in said.out and "verdict" not in said.out
    assert "There is no run called tomorrow in project math" in said.err and "compared with nothing" in said.err


def test_an_empty_plan_says_how_to_fill_it(
    node: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_RUN")
    assert cli.main(["plan", "--project", "math"]) == 0
    said = capsys.readouterr()
    assert said.out == "Plan default replays nothing.\n" and "Pin a step" in said.err


def test_a_target_far_away_is_shown_at_once(
    training: TrainersRun, node: Path, owner: User, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_RUN")
    planned(training, owner, node, target=2**62)
    assert cli.main(["plan", "--project", "math"]) == 0
    said = capsys.readouterr().out
    assert f"{2**62}  " in said and "steps 1-10000 generate" in said
