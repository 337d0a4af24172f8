"""The recipes of `docs/trainers.md` for trainers that write no dump, called as these trainers call them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck import Run
from tests.rolloutdeck.support.fake_server import Receiver

PAGE = (Path(__file__).parents[3] / "docs/trainers.md").read_text()


@pytest.fixture
def deck(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver()
    monkeypatch.setenv("ROLLOUTDECK_URL", receiver.url)
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", "rd_x")
    monkeypatch.setenv("ROLLOUTDECK_SPOOL", str(tmp_path / "spool"))
    yield receiver
    receiver.down()


def recipe(heading: str, **changes: str) -> dict[str, Any]:
    """What the code below a heading defines."""
    section = re.split(r"^## ", PAGE.split(f"\n## {heading}\n")[1], maxsplit=1, flags=re.M)[0]
    code = re.findall(r"^```python\n(.*?)^```$", section, flags=re.M | re.S)[0]
    for old, new in changes.items():
        code = re.sub(rf"^{old} = .*?(?=  #)", f"{old} = {new}", code, flags=re.M)
    names: dict[str, Any] = {}
    exec(code, names)  # the code of our own page
    return names


def sent(run: Run, deck: Receiver) -> list[tuple[int, str, list[dict[str, Any]]]]:
    """(step, step kind, rows) of each call, after the run has ended."""
    run.finish()
    calls = [(query, [json.loads(line) for line in body.splitlines()]) for _, query, body in deck.dumps]
    return sorted(
        ((int(query["step"]), query.get("step_kind", ""), rows) for query, rows in calls), key=lambda one: one[0]
    )


def test_openrlhf_calls_the_function_in_threads_with_one_response_each(deck: Receiver) -> None:
    """As `SingleTurnAgentExecutor._fetch_rewards_via_func` of OpenRLHF 3c3be623 does."""
    pytest.importorskip("torch")
    names = recipe("OpenRLHF", RESPONSES="8")

    async def generate() -> list[Any]:
        calls = [(["q1? it is 4<eos>"], ["q1?"], ["4" if n % 2 else "5"]) for n in range(16)]
        return await asyncio.gather(*(asyncio.to_thread(names["reward_func"], *call) for call in calls))

    infos = asyncio.run(generate())
    assert [info["rewards"].item() for info in infos] == [0.0, 1.0] * 8
    calls = sent(names["run"], deck)
    assert [(step, len(rows)) for step, _, rows in calls] == [(1, 8), (2, 8)]
    row = next(row for _, _, rows in calls for row in rows if row["score"])
    assert row == {"prompt": "q1?", "response": " it is 4<eos>", "score": 1.0, "ground_truth": "4"}


def test_torchforge_has_episodes_with_completions(deck: Receiver) -> None:
    """With the fields of `Episode` in apps/grpo/main.py and of `Completion`, meta-pytorch/torchforge 6e77f0b3."""
    torch = pytest.importorskip("torch")
    names = recipe("torchforge")
    ids, tokens = torch.tensor([1, 2]), torch.tensor([3, 4])
    completion = SimpleNamespace(
        text="4", prompt_ids=ids, token_ids=tokens, logprobs=torch.tensor([-0.5, -0.25]), stop_reason="stop"
    )
    advantages = torch.tensor([0.5, -0.5])
    episodes = [
        SimpleNamespace(completion=completion, reward=1.0, target="4", advantage=advantage, policy_version=7)
        for advantage in advantages
    ]
    names["log_episodes"]("2+2?", episodes)
    ((step, kind, rows),) = sent(names["run"], deck)
    assert (step, kind, len(rows)) == (7, "policy_version", 2)
    assert rows[1] == {
        "prompt": "2+2?", "response": "4", "score": 1.0, "ground_truth": "4", "advantages": -0.5,
        "finish_reason": "stop", "prompt_ids": [1, 2], "response_ids": [3, 4], "logprobs": [-0.5, -0.25],
        "policy_version": 7,
    }  # fmt: skip


def test_unsloth_calls_a_reward_function_as_trl_does(deck: Receiver) -> None:
    """With the keywords of `_calculate_rewards` in TRL 1.16.0."""
    names = recipe("unsloth")
    asked, said = [[{"role": "user", "content": "2+2?"}]] * 2, [[{"role": "assistant", "content": n}] for n in "45"]
    scores = names["correct"](
        prompts=asked, completions=said, completion_ids=[[1], [2]], answer=["4", "4"],
        trainer_state=SimpleNamespace(global_step=2), log_extra=None, log_metric=None,
    )  # fmt: skip
    assert scores == [1.0, 0.0]
    ((step, _, rows),) = sent(names["run"], deck)
    assert step == 3 and [(row["score"], row["ground_truth"]) for row in rows] == [(1.0, "4"), (0.0, "4")]
    assert rows[1]["prompt"] == asked[1] and rows[1]["response"] == said[1]
