"""The replay plan of a run, and the outcomes of its steps."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli import entry as cli
from rolloutdeck.client import replay_plan
from rolloutdeck.client.run import Run as TrainersRun
from rolloutdeck.lib import RunClient
from rolloutdeck.lib.http import ServerResponse
from rolloutdeck.replay.plan import PlanRevision
from rolloutdeck.trainer_api import registry
from rollouts.metrics import load_curves
from rollouts.models import Artifact, Project, Replay, Run
from rollouts.pins import pins
from rollouts.replay import plans
from tests.rolloutdeck.support.fake_server import wait_until
from tests.rolloutdeck.support.step_files import run_import, write_step
from tests.rollouts.support.push import index_file, lines
from tests.rollouts.support.verl_batches import V0, V1, create_ready_artifact
from tests.support import builders
from tests.support.patching import patch_everywhere

pytestmark = pytest.mark.django_db(transaction=True)


def create_plan(training: TrainersRun, owner: User, node: Path, target: int = 3) -> Any:
    """Creates a default plan that replays step 7 of another run at `target`. Returns the pin."""
    other = builders.run(Project.objects.get(), "source", uid="source")
    create_ready_artifact(other, V0, 7)
    pin, _ = pins.pin_step(other, 7, owner)
    plans.save_plan(other.project, "default", owner, if_match=0, action="repeat", entries=[(pin, target)])
    return pin


def test_a_run_gets_its_plan_and_keeps_the_revision(training: TrainersRun, node: Path, owner: User) -> None:
    pin = create_plan(training, owner, node)
    plan = training.replay_plan(facts={"role": "rollout", "rows": 32})
    assert (plan.name, plan.revision, plan.action) == ("default", 1, "repeat")
    assert [plan.resolve(number) is not None for number in (1, 2, 3, 4)] == [False, False, True, True]
    entry = plan.resolve(3)
    assert entry and entry.pin == pin.pk and entry.source["step"] == 7 and not entry.is_incompatible
    [source] = entry.artifacts
    assert (source.role, source.state, set(source.files)) == ("rollout", "ready", {"gen_batch.dp", "meta.json"})
    assert {difference.fact for difference in entry.differences if difference.unknown} >= {"tokenizer", "model"}
    training.log({"loss": 1.0}, step=1)
    wait_until(lambda: Run.objects.get(name="grpo").metric_rows.exists())
    plans.save_plan(pin.project, "default", owner, if_match=1, action="cache", entries=[])
    assert training.replay_plan().revision == 1


def test_an_incompatible_plan_gives_the_reason(training: TrainersRun, node: Path, owner: User) -> None:
    create_plan(training, owner, node)
    entry = training.replay_plan(facts={"role": "rollout_tq", "rows": 32}, bind=False).resolve(3)
    assert entry and entry.is_incompatible
    assert [
        (difference.fact, difference.pinned, difference.asking)
        for difference in entry.differences
        if difference.verdict == "refuse"
    ] == [("role", "rollout", "rollout_tq")]


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9", "http://name.invalid"])
def test_without_a_server_an_empty_plan_is_returned_soon(
    training: TrainersRun, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_URL", url)
    started = time.monotonic()
    plan = training.replay_plan(timeout=1.0)
    assert not plan and plan.resolve(1) is None and time.monotonic() - started < 4
    assert bool(plan.failure) == bool(url)  # a server may respond later


@pytest.mark.parametrize(("status", "is_from_server"), [(503, True), (429, True), (502, False)])
def test_a_plan_of_a_server_that_restarts_can_be_requested_again(
    training: TrainersRun, monkeypatch: pytest.MonkeyPatch, node: Path, owner: User, status: int, is_from_server: bool
) -> None:
    create_plan(training, owner, node)
    response = ServerResponse(status, {}, b"", is_from_server)
    with monkeypatch.context() as patched:
        patched.setattr(RunClient, "request", lambda *_, **__: response)
        first = training.replay_plan()
    assert not first and str(status) in first.failure
    second = training.replay_plan()
    assert second.targets == [3] and not second.failure


@pytest.mark.parametrize(("name", "seconds"), [("", 5.0), ("nightly", 30.0)])
def test_a_named_plan_has_a_longer_timeout(
    training: TrainersRun, monkeypatch: pytest.MonkeyPatch, name: str, seconds: float
) -> None:
    timeouts: list[float] = []

    def request_plan(client: RunClient, *words: Any) -> PlanRevision:
        timeouts.append(client.timeout)
        return PlanRevision()

    monkeypatch.setattr(replay_plan, "request_plan", request_plan)
    training.replay_plan(name)
    assert seconds - 4 < timeouts[0] <= seconds


def test_a_missing_plan_is_an_empty_one(training: TrainersRun) -> None:
    for plan in (training.replay_plan(), training.replay_plan("nightly@4")):
        assert not plan and not plan.failure


def test_the_outcome_of_a_step_is_stored_once(training: TrainersRun, node: Path, owner: User) -> None:
    pin = create_plan(training, owner, node)
    training.replay_plan()
    training.report_replay(step=3, outcome="hit", pin=pin.pk, rows=32, seconds=0.25)
    training.report_replay(step=3, outcome="hit", pin=pin.pk, rows=32, seconds=0.25)
    training.report_replay(step=4, outcome="refused", reason="another prompt")
    training.report_replay(step=5, outcome="maybe")
    training.finish()
    rows = Replay.objects.order_by("step").values_list("step", "outcome", "pin", "rows", "seconds", "reason")
    assert list(rows) == [(3, "hit", pin.pk, 32, 0.25, ""), (4, "refused", pin.pk, None, None, "another prompt")]


# --- plan


def test_the_plan_is_shown_with_its_differences_from_a_run(
    training: TrainersRun, node: Path, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    create_plan(training, owner, node)
    write_step(node, 1, V1)
    run_import(node)
    capsys.readouterr()
    assert cli.main(["plan", "--project", "math", "--run", "grpo"]) == 1
    message = capsys.readouterr().out
    assert "Plan default@1: repeat, generate if a pin cannot be replayed." in message
    assert "replay the pin" not in message and "steps 1-7 generate" in message
    assert 'step 3: refuse: role is "rollout" in the pin, "rollout_tq" in the run' in message
    assert "unknown on both sides, not compared: model, dataset, versions, rollout_correction" in message
    assert "warn: tokenizer is unknown in the pin, unknown in the run" in message
    assert "step 7 of source" in message and "ready" in message
    assert "will generate" in message and "role: rollout pinned, rollout_tq in grpo" in message


def test_a_plan_is_printed_as_json_and_without_a_run(
    training: TrainersRun, node: Path, owner: User, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_RUN")
    pin = create_plan(training, owner, node)
    assert cli.main(["plan", "--project", "math", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(entry["target_step"], entry["pin"]) for entry in result["entries"]] == [(3, pin.pk)]
    assert cli.main(["plan", "--project", "math", "--plan", "default@1", "--steps", "3"]) == 0
    assert "step 3 replays the pin of target step 3" in capsys.readouterr().out
    patch_everywhere(monkeypatch, registry, "get_first_step", lambda format: 0)  # as ROLL, slime and CURE count
    assert cli.main(["plan", "--project", "math", "--plan", "default@1", "--steps", "3"]) == 0
    assert "steps 0-2 generate" in capsys.readouterr().out


def test_a_plan_is_shown_for_a_run_that_has_not_begun(
    training: TrainersRun, node: Path, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    create_plan(training, owner, node)
    capsys.readouterr()
    assert cli.main(["plan", "--project", "math", "--run", "tomorrow"]) == 0
    message = capsys.readouterr()
    assert "steps 3-7 replay the pin of target step 3" in message.out and "outcome" not in message.out
    assert "unknown: depends on the prompts" in message.out and "FITS" not in message.out
    assert "There is no run tomorrow in project math" in message.err and "only after the run has started" in message.err


def test_after_the_run_the_plan_shows_the_outcome_of_each_step(
    training: TrainersRun, node: Path, owner: User, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A plan once showed `replayed` for a step that the run had refused."""
    pin = create_plan(training, owner, node)
    training.replay_plan()
    with caplog.at_level("INFO", "rolloutdeck"):
        training.report_replay(step=3, outcome="hit", pin=pin.pk, rows=32, seconds=0.25, source="step 7 of source")
    training.report_replay(step=4, outcome="refused", reason="its prompts differ")
    training.finish()
    assert caplog.text.count("Step 3 replays step 7 of source: 32 rows in 250 ms.") == 1
    assert cli.main(["plan", "--project", "math", "--run", "grpo"]) == 1
    message = capsys.readouterr().out
    assert re.search(r"was: .* refused \(1 of 2 steps replayed\) +its prompts differ", message)
    curves = load_curves(Run.objects.get(name="grpo"), ["replay/replayed"])
    [curve] = next(iter(curves.values()))["replay/replayed"]
    assert (list(curve["steps"]), list(curve["values"])) == ([3, 4], [1.0, 0.0])


def test_a_dry_run_sends_its_prompts_and_the_plan_compares_them(
    training: TrainersRun, node: Path, owner: User, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    create_plan(training, owner, node)
    source = Run.objects.get(name="source")
    row = {"input": "1+1=", "output": "2", "score": 1.0, "step": 7}
    index_file(source, lines(row), 7, attempt=source.attempts.get().key)
    Artifact.objects.update(facts={"role": "rollout", "rows": 1})
    file = tmp_path / "prompts.jsonl"
    chat = [{"role": "user", "content": "1+1="}]
    file.write_text(
        json.dumps({"step": 3, "prompts": [chat]}) + "\n" + json.dumps({"step": 4, "prompt": "3-1="}) + "\n"
    )
    assert cli.main(["plan", "--project", "math", "--run", "tomorrow", "--prompts", str(file)]) == 0
    message = capsys.readouterr()
    assert "Sent the prompts of 2 steps of tomorrow." in message.err and "planned" in message.err
    assert re.search(r"will replay +step 3 of tomorrow has the same prompts", message.out)
    file.write_text("[1]\n")
    assert cli.main(["plan", "--project", "math", "--run", "tomorrow", "--prompts", str(file)]) == 2
    assert "line 1: expected a JSON object" in capsys.readouterr().err
    for text in (b'{"step": 3, "prompts": "1+1="}\n', b'{"step": 3, "prompt": "\xff"}\n'):
        file.write_bytes(text)
        assert cli.main(["plan", "--project", "math", "--run", "tomorrow", "--prompts", str(file)]) == 2
        assert "expected a JSON object" in (error := capsys.readouterr().err) or "not a text file in UTF-8" in error
    assert cli.main(["plan", "--project", "math", "--run", "typo", "--prompts", str(tmp_path / "missing")]) == 2
    assert "missing" in capsys.readouterr().err and not Run.objects.filter(name="typo").exists()


def test_an_empty_plan_says_how_to_fill_it(
    node: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_RUN")
    assert cli.main(["plan", "--project", "math"]) == 0
    message = capsys.readouterr()
    assert message.out == "Plan default replays nothing.\n" and "Pin a step" in message.err


def test_an_unknown_plan_is_an_error_that_names_the_others(
    training: TrainersRun, node: Path, owner: User, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_RUN")
    create_plan(training, owner, node)
    for name in ("typo", "typo@1"):
        assert cli.main(["plan", "--project", "math", "--plan", name]) == 2
        assert "There is no replay plan 'typo' in math. Available: default." in capsys.readouterr().err


def test_a_plan_with_a_very_large_target_is_printed_quickly(
    training: TrainersRun, node: Path, owner: User, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_RUN")
    create_plan(training, owner, node, target=2**62)
    assert cli.main(["plan", "--project", "math"]) == 0
    message = capsys.readouterr().out
    assert f"{2**62}  " in message and "steps 1-10000 generate" in message
