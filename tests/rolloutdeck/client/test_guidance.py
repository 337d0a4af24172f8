"""A run follows the guidance rules of its project, and never waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rolloutdeck.client import Run, guidance
from rolloutdeck.client import start as client_start
from rolloutdeck.protocol import compute_prompt_key, compute_response_key, get_prompt_key, get_response_key
from rollouts.formats.readers import chat
from tests.rolloutdeck.support.fake_server import wait_until
from tests.rolloutdeck.support.guiding import GuidanceServer, build_rules

RULES = build_rules({"key": "bad"}, {"key": "tell", "action": "reward"}, prompts=[("1+1=", [0])])


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[GuidanceServer]:
    monkeypatch.setattr(guidance, "GUIDANCE_SECONDS", 0.02)
    monkeypatch.setattr(guidance, "MAX_PAUSE_SECONDS", 0.02)
    running = GuidanceServer(RULES)
    yield running
    running.down()


def test_the_rules_are_followed_and_survive_a_restart_without_the_server(
    receiver: GuidanceServer, start: Callable[..., Run], spool_root: Path
) -> None:
    rules = start().guidance()
    assert rules.wait(30) and rules.rules.version == 3
    row = rules.find("1+1=", "3")
    assert row is not None and row.rules == ("bad",) and rules.find("2+2=", "4") is None
    wait_until(lambda: receiver.statuses.count(304) > 1)
    receiver.rules = build_rules({"key": "other"}, responses=[("2+2=", "5", [0])])
    wait_until(lambda: rules.find("2+2=", "5"))
    assert rules.find("2+2=", "4") is None
    client_start._runs[0].finish(timeout=1)
    client_start._runs.clear()
    receiver.down()
    next_guidance = start(name="next").guidance()
    wait_until(lambda: next_guidance.rules.version)
    assert next_guidance.find([{"role": "user", "content": "2+2="}], "5") is not None
    assert len(list(spool_root.glob(".guidance-*"))) == 1
    receiver.up()


def test_a_project_that_does_not_exist_yet_causes_no_warning(
    receiver: GuidanceServer, start: Callable[..., Run], caplog: pytest.LogCaptureFixture
) -> None:
    receiver.has_project = False
    run_guidance = start().guidance()
    wait_until(lambda: receiver.statuses.count(404) > 1)
    receiver.has_project = True
    wait_until(lambda: run_guidance.rules.version == 3)
    assert "No new guidance rules" not in caplog.text


def test_a_404_of_a_proxy_is_no_answer(
    receiver: GuidanceServer, start: Callable[..., Run], caplog: pytest.LogCaptureFixture
) -> None:
    receiver.has_project = receiver.is_ours = False
    run_guidance = start().guidance()
    wait_until(lambda: "No new guidance rules" in caplog.text)
    assert not run_guidance.wait(0)
    receiver.has_project = receiver.is_ours = True
    assert run_guidance.wait(30) and run_guidance.rules.version == 3


@pytest.mark.parametrize("rules", [{}, {"version": 1, "baseline": "?", "rules": [], "prompts": {}, "responses": {}}])
def test_an_invalid_answer_keeps_the_last_known_rules(
    receiver: GuidanceServer, start: Callable[..., Run], rules: dict[str, object]
) -> None:
    run_guidance = start().guidance()
    assert run_guidance.wait(30)
    receiver.rules = rules
    seen = len(receiver.statuses)
    wait_until(lambda: len(receiver.statuses) > seen + 2)
    assert run_guidance.rules.version == 3


def test_a_slow_server_delays_nothing(receiver: GuidanceServer, start: Callable[..., Run]) -> None:
    receiver.delay = 1.0
    run, started = start(), time.monotonic()
    assert run.guidance().find("1+1=", "3") is None and run.guidance() is run.guidance()
    assert time.monotonic() - started < 0.9
    run.report_guidance(1, 3, 2, 20, {"bad": 2})
    wait_until(receiver.points)
    assert receiver.points()[0]["values"] == {
        "guidance/version": 3, "guidance/samples": 2, "guidance/tokens": 20, "guidance/rule/bad": 2,
    }  # fmt: skip


USER = {"role": "user", "content": "What is 2+2?"}


@pytest.mark.parametrize(
    "prompt",
    [
        "What is  2+2?\n",
        "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n",
        [USER],
        [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "So"}],
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "café\u0301"}]}],
        [{"role": "user", "content": None}],
    ],
)
def test_a_trainer_and_the_server_compute_the_same_keys(prompt: object) -> None:
    for response in ("4", [{"role": "assistant", "content": "4 \n"}], [{"role": "assistant", "content": ["a", "b"]}]):
        prompt_text, response_text, _messages = chat.parse_prompt_response(prompt, response)
        assert get_prompt_key(prompt) == compute_prompt_key(prompt_text)
        assert get_response_key(response) == compute_response_key(response_text)


def test_a_prompt_or_response_without_a_text_has_no_key() -> None:
    calls = [{"role": "assistant", "content": "", "tool_calls": [{}]}]
    assert [get_response_key(value) for value in (calls, [USER], 3, [])] == [""] * 4
    assert [get_prompt_key(value) for value in ([{"role": "user", "content": 3}], 3, [])] == [""] * 3
