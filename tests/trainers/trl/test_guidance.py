"""Guidance rules in a real TRL trainer: two samples are flagged while it trains, and their prompts return."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.guidance import save_guidance
from rollouts.indexing.indexer import index_dump
from rollouts.metrics import load_curves
from rollouts.models import Dump, Project, Run, Sample
from rollouts.samples import load_body
from tests.dashboard.support.asgi_server import Site
from tests.rolloutdeck.support.fake_server import wait_until
from tests.rolloutdeck.support.guiding import GuidanceServer, build_rules
from tests.support import builders
from tests.trainers.verl.process import Training, train

pytestmark = [pytest.mark.trainers, pytest.mark.django_db(transaction=True)]

SCRIPT = "../../trl/inside/training.py"
RULES = [
    {"key": "again", "query": "reason:hack", "action": "mask", "target": "response"},
    {"key": "skip", "query": "reason:skip", "action": "drop"},
    {"key": "tell", "query": "reason:hack", "action": "reward", "target": "response", "value": -2},
]


@pytest.fixture(scope="module")
def plain_training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return train(SCRIPT, "grpo", "plain", "again", folder=tmp_path_factory.mktemp("alone"))


def index_received_dumps() -> None:
    for pk in Dump.objects.filter(state=Dump.State.RECEIVED).values_list("pk", flat=True):
        index_dump(pk)


def find_step(number: int) -> list[Sample]:
    index_received_dumps()
    rows = Sample.objects.filter(step__step=number, step__split="train").order_by("group", "index")
    return list(rows) if rows.count() == 8 else []


def train_guided(site: Site, owner: User, folder: Path, baseline: str) -> Training:
    """Flags the second response to the first prompt and the first one to the second prompt, after the first step."""
    project = Project.objects.get()
    Project.objects.update(reasons=[{"key": key, "name": key} for key in ("hack", "skip")])
    environ = {
        "ROLLOUTDECK_URL": f"http://127.0.0.1:{site.port}",
        "ROLLOUTDECK_TOKEN": builders.token(owner, "ingest", "read", on=project),
        "ROLLOUTDECK_PROJECT": project.slug,
    }
    with ThreadPoolExecutor() as pool:
        training = pool.submit(train, SCRIPT, "grpo", "guided", "again", "waits", folder=folder, **environ)
        samples = wait_until(lambda: training.done() or find_step(1), 200)
        if training.done():
            training.result()
        builders.flag(samples[1].pk, owner, reason="hack")
        builders.flag(samples[4].pk, owner, reason="skip")
        save_guidance(project, owner, RULES, baseline)
        return training.result()


def compute_advantages(rewards: list[float]) -> list[float]:
    mean = sum(rewards) / len(rewards)
    deviation = (sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)) ** 0.5
    return [(reward - mean) / (deviation + 1e-4) for reward in rewards]


@pytest.mark.parametrize("baseline", ["trainer", "exclude"])
def test_rows_that_a_rule_selects_have_no_advantage_and_all_other_numbers_are_equal(
    site: Site, project: Project, owner: User, tmp_path: Path, plain_training: Training, baseline: str
) -> None:
    guided = train_guided(site, owner, tmp_path, baseline)
    assert guided.json("seen.json")[:2] == plain_training.json("seen.json")[:2]
    third = plain_training.json("seen.json")[2]
    hacked, skipped = third["ids"][1], third["ids"][4:]
    assert third["ids"] == plain_training.json("seen.json")[0]["ids"] == guided.json("seen.json")[2]["ids"]

    rows, plain = (training.json("result.json")["trained"] for training in (guided, plain_training))
    assert [row[:2] for row in rows] == [row[:2] for row in plain], "the same responses in the same order"
    changed = {at: row for at, row in enumerate(rows) if row != plain[at]}
    expected: dict[int, Any] = {}
    rewards = [sum(part or 0 for part in (letters, (short or 0) / 2)) for letters, short in zip_rewards(third)]
    others = dict(zip([0, 2, 3], compute_advantages([rewards[at] for at in (0, 2, 3)]), strict=True))
    for at, (step, ids, _advantage, tokens) in enumerate(plain):
        if step == 3 and ids == hacked:
            expected[at] = [step, ids, 0.0, tokens]
        elif step == 3 and ids in skipped:
            expected[at] = [step, ids, 0.0, 0]
        elif step == 3 and baseline == "exclude":
            expected[at] = [step, ids, pytest.approx(others[third["ids"].index(ids)], rel=1e-4), tokens]
    assert len(expected) == (8 if baseline == "exclude" else 5) and changed == expected

    reward_guidance = guided.json("result.json")["told"]
    assert (
        reward_guidance[2] == [{}, {"tell": -2.0}, *[{}] * 6] and reward_guidance[0] == reward_guidance[3] == [{}] * 8
    )
    check_recorded(hacked, skipped)


def zip_rewards(step: dict[str, Any]) -> list[tuple[float, float | None]]:
    shorts = [None if value != value else value for value in step["rewards"]["short"]]
    return list(zip(step["rewards"]["letters"], shorts, strict=True))


def check_recorded(hacked: list[int], skipped: list[list[int]]) -> None:
    """The run shows the version, the counts, and for each sample the rules that selected it."""
    run = Run.objects.get()
    names = ["guidance/version", "guidance/samples", "guidance/tokens", "guidance/rule/skip"]
    curves = load_curves(run, names)[run.uid]
    points = {name: dict(zip(curves[name][0]["steps"], curves[name][0]["values"], strict=True)) for name in names}
    tokens = len(hacked) + sum(map(len, skipped))
    assert [points[name][3] for name in names] == [1, 5, tokens, 4]
    assert [points[name].get(4) for name in names] == [1, 0, 0, 0] and 1 not in points["guidance/version"]
    samples = wait_until(lambda: find_step(3), 30)
    marks = [load_body(sample).extras.get("guidance", "") for sample in samples]
    assert marks == ["", "again, tell", "", "", *["skip"] * 4]
    assert all(sample.advantage == 0 for sample, mark in zip(samples, marks, strict=True) if mark)
    assert all(sample.score is not None for sample in samples), "a masked sample keeps its score"


def test_several_processes_follow_the_rules_of_the_first_one(tmp_path: Path) -> None:
    rules = build_rules(
        {"key": "bad"}, {"key": "skip", "action": "drop"}, baseline="exclude",
        prompts=[("What is 0 + 1?", [0]), ("What is 3 + 4?", [1])],
    )  # fmt: skip
    found = train(
        SCRIPT, "grpo", "guided", "again", "waits", folder=tmp_path, receiver=GuidanceServer(rules), processes=2
    )
    affected: dict[str, list[tuple[float, bool]]] = {}
    for name in ("", "-1"):
        step = found.json(f"seen{name}.json")[2]
        prompts = {str(ids): prompt for prompt, ids in zip(step["prompt"], step["ids"], strict=True)}
        for number, ids, advantage, tokens in found.json(f"result{name}.json")["trained"]:
            if number == 3:
                affected.setdefault(prompts[str(ids)], []).append((advantage, tokens > 0))
    assert affected["What is 0 + 1?"] == [(0.0, True)] * 4 and affected["What is 3 + 4?"] == [(0.0, False)] * 4
    assert all(
        advantage and has_tokens for n in (1, 2) for advantage, has_tokens in affected[f"What is {n} + {n + 1}?"]
    )
    values = found.values(3)
    assert [values[f"guidance/{name}"] for name in ("version", "samples", "rule/bad", "rule/skip")] == [3, 8, 4, 4]
