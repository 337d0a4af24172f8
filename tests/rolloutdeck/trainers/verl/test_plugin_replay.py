"""The plug-in at a step whose pin cannot be downloaded or does not fit. Hits: `tests/trainers/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.lib import DownloadError, ServerUnreachableError, download
from rolloutdeck.replay.plan import PlanRevision, parse_plan
from rolloutdeck.trainers.common import patching, pinned_step
from rolloutdeck.trainers.verl.layout import read_requirements
from rolloutdeck.trainers.verl.plugin import replay as plugin_replay
from rolloutdeck.trainers.verl.plugin import rollout_skip
from rolloutdeck.trainers.verl.plugin.replay import LoadedStep, VerlReplay, serialize_messages

SETTINGS = {
    "trainer.use_v1": False, "trainer.experiment_name": "qwen", "trainer.project_name": "math",
    "data.train_batch_size": 2, "data.max_prompt_length": 8, "data.max_response_length": 6,
    "actor_rollout_ref.rollout.n": 2,
}  # fmt: skip
V1 = {"trainer.use_v1": True}
BYPASS, LOGPROBS = "algorithm.rollout_correction.bypass_mode", "actor_rollout_ref.rollout.calculate_log_probs"
FILES = {name: {"sha256": "0" * 64, "bytes": 1} for name in ("gen_batch.dp", "meta.json")}


class Reports:
    """Records the outcomes that a replay reports to its run."""

    def __init__(self) -> None:
        self.run = self
        self.reported: list[tuple[int, str, Any, str]] = []

    def report_replay(self, step: int, outcome: str, pin: Any = None, reason: str = "", **_: Any) -> None:
        self.reported.append((step, outcome, pin, reason))


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(download, "FIRST_RETRY_SECONDS", 0.0)
    monkeypatch.setenv("ROLLOUTDECK_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("HOME", str(tmp_path))
    yield


def build_replay(*, flagged: int = 0, differences: Any = (), **plan: Any) -> VerlReplay:
    """A run of V0 under a plan that replays pin 5 at step 3."""
    source = {"run": "u", "name": "first", "step": 3, "step_kind": "global_step", "flagged": flagged}
    artifact = {"id": "a", "role": "rollout", "step": 3, "files": FILES}
    entry = {"target_step": 3, "pin": 5, "source": source, "artifacts": [artifact], "differences": list(differences)}
    values = {"plan": "default", "revision": 2, "action": "cache", "on_mismatch": "generate", "exclude_flagged": False}
    return VerlReplay(Reports(), read_requirements(SETTINGS), parse_plan({**values, "entries": [entry], **plan}))  # type: ignore[arg-type]


def build_prompt_replay(**plan: Any) -> VerlReplay:
    """A run of fully async under a plan that replays two prompts, one of them flagged, as number 6 and 7."""
    settings = {**SETTINGS, "async_training.require_batches": 1, "data.gen_batch_size": 1}
    source = {"run": "u", "name": "first", "step": 1, "step_kind": "feed_index", "flagged": 1, "unplaced": 0}
    artifacts = [
        {"id": "a", "role": "async_rollout", "step": feed, "files": FILES, "whole": feed == 4} for feed in (4, 5)
    ]
    entry = {"target_step": 3, "pin": 5, "source": source, "artifacts": artifacts}
    values = {"plan": "p", "revision": 1, "action": "cache", "on_mismatch": "generate", "exclude_flagged": False}
    return VerlReplay(Reports(), read_requirements(settings), parse_plan({**values, "entries": [entry], **plan}))  # type: ignore[arg-type]


def get_reported_outcome(replay: VerlReplay) -> tuple[str, Any, str]:
    """Loads step 3, which is not replayed; returns what was reported."""
    assert replay.load_step(3) is None
    ((step, result, pin, reason),) = replay.session.reported  # type: ignore[attr-defined]
    assert step == 3
    return result, pin, reason


@pytest.mark.parametrize(("failures", "asked"), [(2, 3), (9, 4)])
def test_the_start_waits_for_a_server_that_restarts(monkeypatch: pytest.MonkeyPatch, failures: int, asked: int) -> None:
    """Without a plan at the start, verl turns its rollout skip off."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 60.0

    calls: list[Any] = []

    def replay_plan(facts: Any) -> PlanRevision:
        calls.append(facts)
        return PlanRevision(failure="502") if len(calls) <= failures else build_replay().plan

    monkeypatch.setattr(plugin_replay, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    session: Any = SimpleNamespace(run=SimpleNamespace(replay_plan=replay_plan))
    plan = plugin_replay.request_plan(session, read_requirements(SETTINGS))
    assert (bool(plan), len(calls)) == (failures == 2, asked)


def test_only_steps_that_the_plan_names_are_requested() -> None:
    assert [step for step in range(6) if build_replay().has_step(step)] == [3]
    assert [step for step in range(6) if build_replay(action="repeat_last").has_step(step)] == [3, 4, 5]


def test_a_pin_that_cannot_be_downloaded_is_a_miss_and_the_next_step_waits_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    downloads = pinned_step.StepDownloads()
    monkeypatch.setattr(plugin_replay, "step_downloads", downloads)
    result, pin, reason = get_reported_outcome(build_replay())
    assert (result, pin) == ("miss", 5)
    assert "Can't download" in reason
    assert downloads.is_failing


class Clock:
    """Stands in for `time`."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_prompts_of_fully_async_do_not_wait_for_a_server_that_did_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[float] = []
    clock = Clock()

    def download_file(*_: Any, **__: Any) -> None:
        tries.append(clock.now)
        if not is_up:
            raise ServerUnreachableError("it does not respond")
        raise DownloadError("its file is gone")

    is_up = False
    monkeypatch.setattr(plugin_replay, "step_downloads", SimpleNamespace(download_file=download_file))
    requested = build_prompt_replay()
    monkeypatch.setattr(plugin_replay, "time", clock)
    assert requested.load_step(6) is requested.load_step(7) is None
    assert tries == [1000.0]
    reported = requested.session.reported  # type: ignore[attr-defined]
    assert [(step, result) for step, result, _, _ in reported] == [(6, "miss"), (7, "miss")]
    assert "did not respond" in reported[1][3]
    for _ in range(3600):
        clock.now += 1
        requested.load_step(6)
    pauses = [later - earlier for earlier, later in zip(tries, tries[1:], strict=False)]
    assert pauses[0] >= 30 and pauses == sorted(pauses) and pauses[-1] <= 600 and 5 < len(tries) < 15
    is_up = True
    clock.now += 600
    asked = len(tries)
    assert requested.load_step(6) is requested.load_step(7) is None
    assert len(tries) == asked + 2


def test_a_pin_that_does_not_fit_is_refused_with_the_fact() -> None:
    wrong = {"fact": "rows", "pinned": 8, "asking": 4, "verdict": "refuse"}
    result, pin, reason = get_reported_outcome(build_replay(differences=[wrong]))
    assert (result, pin) == ("refused", 5)
    assert "rows: 8 pinned, 4 requested" in reason


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({BYPASS: True}, BYPASS),
        ({**V1, BYPASS: True, LOGPROBS: True}, BYPASS),
        ({**V1, LOGPROBS: True}, LOGPROBS),
        ({LOGPROBS: True}, ""),
        ({**V1, BYPASS: False, LOGPROBS: False}, ""),
        (V1, ""),
    ],
)
def test_a_batch_needs_log_probs_if_verl_fails_without_them(overrides: dict[str, bool], expected: str) -> None:
    setting = read_requirements({**SETTINGS, **overrides}).logprobs_setting
    assert setting == expected
    for fields in ({"responses": 0}, {"responses": 0, "rollout_log_probs": 0}):
        for batch in ({"tensordict": fields}, SimpleNamespace(batch=fields)):  # of V1, and of the others
            loaded = LoadedStep(Path("3"), {Path("3/batch"): batch})
            if expected and len(fields) == 1:
                with pytest.raises(NotReplayableError, match=f"no rollout_log_probs, which {expected}=True"):
                    plugin_replay.check_logprobs(loaded, setting)
            else:
                plugin_replay.check_logprobs(loaded, setting)


def test_a_pin_without_the_log_probs_that_the_run_needs_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = build_replay()
    requested.requirements = read_requirements({**SETTINGS, BYPASS: True})
    loaded = LoadedStep(Path("3"), {Path("3/gen_batch.dp"): SimpleNamespace(batch={"responses": 0})})
    monkeypatch.setattr(requested, "_find_placement", lambda step: None)
    monkeypatch.setattr(requested, "_download", lambda placement: loaded)
    result, pin, reason = get_reported_outcome(requested)
    assert (result, pin) == ("refused", 5)
    assert reason == f"its rows have no rollout_log_probs, which {BYPASS}=True of this run needs"


def test_a_pin_whose_flagged_rows_are_in_no_file_is_refused_if_the_plan_excludes_them() -> None:
    result, pin, reason = get_reported_outcome(build_replay(flagged=1, exclude_flagged=True))
    assert (result, pin) == ("refused", 5)
    assert "1 of its 1 flagged samples can't be found in its files" in reason
    assert get_reported_outcome(build_replay(flagged=0, exclude_flagged=True))[0] == "miss"
    assert get_reported_outcome(build_replay(flagged=1))[0] == "miss"


def test_a_flagged_prompt_of_fully_async_is_generated_and_reported_and_stops_no_run() -> None:
    requested = build_prompt_replay(on_mismatch="stop", exclude_flagged=True)
    assert [feed for feed in range(10) if requested.has_step(feed)] == [6, 7]
    assert requested.load_step(6) is None
    reason = "an answer to this prompt is flagged, and the plan excludes flagged samples"
    assert requested.session.reported == [(6, "refused", 5, reason)]  # type: ignore[attr-defined]


def test_only_a_plan_that_says_stop_raises_an_error() -> None:
    requested = build_replay(on_mismatch="stop")
    with pytest.raises(patching.ReplayStoppedError, match="default@2 says to stop .* Step 3"):
        requested.load_step(3)
    with pytest.raises(patching.ReplayStoppedError):
        patching.catch_errors(requested.load_step)(3)


def test_prompts_are_compared_by_role_and_text_alone() -> None:
    requests = [{"role": "user", "content": "2+2?", "name": None}]
    assert serialize_messages(requests) == serialize_messages([{"content": "2+2?", "role": "user"}])
    assert serialize_messages(requests) != serialize_messages([{"role": "user", "content": "2+3?"}])
    assert serialize_messages(requests) != serialize_messages([{"role": "system", "content": "2+2?"}])


torch = SimpleNamespace(load=lambda path, **_: f"unpickled {path}", tensor=lambda value: [value])


def load_tensor(path: str, times: int = 1, *, also: int = 0) -> Any:
    return torch.tensor(torch.load(path, weights_only=False)), times, also


def call_load_tensor(path: str) -> Any:
    return load_tensor(path)


def test_code_of_verl_loads_with_our_loader_and_is_otherwise_unchanged() -> None:
    created = rollout_skip.replace_torch_load(load_tensor, lambda path: f"read {path}")
    assert created("a.pt", also=2) == (["read a.pt"], 1, 2)
    assert load_tensor("a.pt") == (["unpickled a.pt"], 1, 0)


def test_only_code_that_calls_torch_load_itself_can_use_our_loader() -> None:
    assert rollout_skip.has_torch_load(load_tensor)
    assert not any(map(rollout_skip.has_torch_load, (call_load_tensor, None, torch)))
