"""What the start module of OpenRLHF passes to Ray, also next to the environment of a submitted job."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from rolloutdeck.lib import Settings
from rolloutdeck.trainers.common import patching
from rolloutdeck.trainers.openrlhf import __main__ as start

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def load_job_environment() -> dict[str, Any]:
    return dict(json.loads(os.environ.get(JOB_CONFIG, "{}")).get("runtime_env") or {})


def merge_environments(job: dict[str, Any], driver: dict[str, Any]) -> dict[str, Any]:
    """As Ray 2.60 merges them: `_merge_runtime_env` in ray/runtime_env/runtime_env.py."""
    job_variables, driver_variables = job.pop("env_vars", {}), driver.pop("env_vars", {})
    if set(job) & set(driver) or set(job_variables) & set(driver_variables):
        raise ValueError("Failed to merge the Job's runtime env")
    return {**job, **driver, "env_vars": {**job_variables, **driver_variables}}


class Workers:
    """The processes of Ray: their runtime environment, once the module has started Ray."""

    environment: dict[str, Any]

    def init(self, runtime_env: dict[str, Any]) -> None:
        self.environment = merge_environments(load_job_environment(), dict(runtime_env))

    def start_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes this process a worker on another node: with the variables of Ray only, and with the hook called."""
        for name in [name for name in os.environ if name.startswith("ROLLOUTDECK_")]:
            monkeypatch.delenv(name)
        for name, value in self.environment["env_vars"].items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("ROLLOUTDECK_TOKEN", os.environ.get("ROLLOUTDECK_TOKEN", ""))  # restored after the test
        hook: str | Callable[[], None] = self.environment["worker_process_setup_hook"]
        if isinstance(hook, str):
            module, _, name = hook.rpartition(".")
            hook = getattr(importlib.import_module(module), name)
        assert not isinstance(hook, str)
        hook()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    """The workers of a Ray that `start.main()` starts. The training itself does nothing."""
    workers, ray = Workers(), ModuleType("ray")
    vars(ray)["init"] = workers.init
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("runpy.run_module", lambda *args, **options: None)
    monkeypatch.setattr(start, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(patching.PatchingFinder, "waiting", {})
    for name in [name for name in os.environ if name.startswith("ROLLOUTDECK_") or name in start.DEFAULT_VARIABLES]:
        monkeypatch.delenv(name)
    return workers


def submit_job(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """`ray job submit --runtime-env-json`: Ray sets the variables of the job in its driver, too."""
    monkeypatch.setenv(JOB_CONFIG, json.dumps({"runtime_env": {"env_vars": variables}, "metadata": {}}))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_workers_get_our_variables_and_those_of_openrlhf(monkeypatch: pytest.MonkeyPatch, workers: Workers) -> None:
    monkeypatch.setenv("ROLLOUTDECK_RUN", "ppo")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    start.main()
    variables = workers.environment["env_vars"]
    assert (variables["ROLLOUTDECK_RUN"], variables["NCCL_DEBUG"]) == ("ppo", "INFO")
    assert variables["TOKENIZERS_PARALLELISM"] == "true"
    workers.start_one(monkeypatch)
    assert start.SCRIPT.partition(".")[0] in {name.partition(".")[0] for name in patching.PatchingFinder.waiting}


def test_a_submitted_job_may_set_the_same_variables(monkeypatch: pytest.MonkeyPatch, workers: Workers) -> None:
    submit_job(monkeypatch, ROLLOUTDECK_URL="http://deck", ROLLOUTDECK_TOKEN_FILE="/t", NCCL_DEBUG="INFO")
    monkeypatch.setenv("ROLLOUTDECK_RUN", "ppo")
    start.main()
    assert workers.environment["env_vars"] == {
        "ROLLOUTDECK_URL": "http://deck", "ROLLOUTDECK_TOKEN_FILE": "/t", "NCCL_DEBUG": "INFO",
        "ROLLOUTDECK_RUN": "ppo", "TOKENIZERS_PARALLELISM": "true", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
    }  # fmt: skip


@pytest.mark.parametrize("config", ["{}", '{"runtime_env": null}', '{"runtime_env": {}}'])
def test_a_submitted_job_without_variables_gets_ours(
    config: str, monkeypatch: pytest.MonkeyPatch, workers: Workers
) -> None:
    monkeypatch.setenv(JOB_CONFIG, config)
    monkeypatch.setenv("ROLLOUTDECK_RUN", "ppo")
    start.main()
    assert workers.environment["env_vars"]["ROLLOUTDECK_RUN"] == "ppo"


def test_workers_get_a_token_that_ray_does_not_show(monkeypatch: pytest.MonkeyPatch, workers: Workers) -> None:
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", "rd_secret")
    start.main()
    assert "rd_secret" not in repr(workers.environment)
    workers.start_one(monkeypatch)
    assert Settings.from_environment().token == "rd_secret"
    assert patching.PatchingFinder.waiting


def test_a_token_file_is_passed_by_its_name(monkeypatch: pytest.MonkeyPatch, workers: Workers) -> None:
    monkeypatch.setenv("ROLLOUTDECK_TOKEN_FILE", "/shared/deck.token")
    start.main()
    assert workers.environment["env_vars"]["ROLLOUTDECK_TOKEN_FILE"] == "/shared/deck.token"
    assert workers.environment["worker_process_setup_hook"] == start.HOOK
