"""The configuration as flat keys: what counts as equal, what changed between attempts, and its text forms."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from rollouts.lib import MISSING, are_equal_config_values
from rollouts.models import Attempt, Project, Run
from rollouts.runs.config_differences import dump_overrides, dump_yaml, load_config_keys
from tests.support import builders


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1e-06, "0.000001", True),
        ("1e-6", 1e-06, True),
        (1, 1.0, True),
        (True, 1, False),
        ("true", True, True),
        ("None", None, True),
        (None, MISSING, False),
        ([1, "2"], [1.0, 2], True),
        ({"a": 1}, {"a": "1.0"}, True),
        ("gspo", "grpo", False),
        ("", None, False),
    ],
)
def test_equal_values_may_be_written_differently(left: Any, right: Any, equal: bool) -> None:
    assert are_equal_config_values(left, right) is equal


@pytest.mark.django_db
def test_differences_to_another_run_and_between_attempts(project: Project) -> None:
    first = builders.run(project, "one", config={"actor": {"lr": 1e-6, "clip": 0.2}, "n": 8})
    second = builders.run(project, "two", config={"actor": {"lr": "0.000001", "clip": 0.3}, "m": 1})
    builders.attempt(first, "a")
    later = builders.attempt(first, "b")
    later.config_changes = {"actor": [{"lr": 8e-7, "clip": 0.2}, {"lr": 1e-6, "clip": 0.2}], "n": [None, 8]}
    later.save()
    keys = {key.name: key for key in load_config_keys(first, second)}
    assert [name for name, key in keys.items() if key.differs] == ["actor.clip", "m", "n"]
    assert keys["m"].value is MISSING and keys["n"].other is MISSING
    changes = {name: [(each.attempt, each.before, each.after) for each in key.changes] for name, key in keys.items()}
    assert changes["actor.lr"] == [(2, 8e-7, 1e-6)]
    assert changes["n"] == [(2, MISSING, 8)]
    assert changes["actor.clip"] == []
    assert not any(key.differs for key in load_config_keys(first))
    assert Attempt.objects.count() == 2 and Run.objects.count() == 2


CONFIG: dict[str, Any] = {
    "actor": {"optim": {"lr": 1e-06}, "empty": {}},
    "on": True, "text": "two words", "number": "8", "list": [1, "a"], "none": None, "a: b": "x",
}  # fmt: skip


def test_yaml_holds_every_value() -> None:
    text = dump_yaml(CONFIG)
    assert text.splitlines() == [
        "actor:", "  optim:", "    lr: 1e-06", "  empty: {}", '"on": true', 'text: "two words"', 'number: "8"',
        'list: [1, "a"]', "none: null", '"a: b": "x"',
    ]  # fmt: skip


def test_overrides_are_arguments_of_a_shell() -> None:
    arguments = [shlex.split(line)[0] for line in dump_overrides(CONFIG).splitlines()]
    assert arguments == [
        "actor.optim.lr=1e-06", "actor.empty={}", "on=true", 'text="two words"', 'number="8"', 'list=[1, "a"]',
        "none=null", "a: b=x",
    ]  # fmt: skip
