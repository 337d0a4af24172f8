"""The live plug-in of AReaL, in the process of the trainer: `record` replaces the workflow of a training.

Source: areal-project/AReaL cbff54d. `PPOTrainer.train` in areal/trainer/rl_trainer.py takes a workflow by its import
path and passes the numbers of each step to its `stats_logger`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.lib import logger
from rolloutdeck.trainers.common import EXIT_SECONDS, TrainerSession, catch_errors, get_session, open_trainer_run

WORKFLOW = "rolloutdeck.trainers.areal.workflow.RecordingWorkflow"
WORKFLOW_ARGUMENTS = ("workflow", "eval_workflow")


def record(trainer: Any, **arguments: Any) -> dict[str, Any]:
    """Returns the arguments for `trainer.train(…)` so that the training is recorded. Never raises.

    trainer.train(**areal.record(trainer, workflow=…, workflow_kwargs=…))
    """
    return _record_trainer(trainer, dict(arguments)) or arguments


@catch_errors
def _record_trainer(trainer: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    session = get_session("areal", lambda: TrainerSession(open_areal_run(trainer.config)))
    record_stats(session, trainer.stats_logger)
    for name in WORKFLOW_ARGUMENTS:
        if arguments.get(name) is not None:
            arguments |= replace_workflow(session.run, arguments, name)
    return arguments


def open_areal_run(config: Any) -> Run:
    """Opens the run, named by experiment and trial. The folder of a trial identifies it."""
    names = [str(getattr(config, name, None) or "") for name in ("experiment_name", "trial_name")]
    root = getattr(getattr(config, "cluster", None), "fileroot", None)
    folder = str(Path(root, "rolloutdeck", *names).absolute()) if root and all(names) else ""
    project, name = names
    return open_trainer_run("areal", project, name, folder, config=config, exit_timeout=EXIT_SECONDS)


@catch_errors
def record_stats(session: TrainerSession, stats_logger: Any) -> None:
    """Records what AReaL passes to `stats_logger.commit(epoch, step, global_step, data)`."""
    commit = stats_logger.commit

    @functools.wraps(commit)
    def commit_and_record(
        epoch: int, step: int, global_step: int, data: Mapping[str, Any] | list[Mapping[str, Any]]
    ) -> Any:
        items = [data] if isinstance(data, Mapping) else list(data)
        merged = {name: value for item in items for name, value in item.items() if not name.endswith("__count")}
        catch_errors(session.run.log)(merged, global_step)
        return commit(epoch, step, global_step, data)

    stats_logger.commit = commit_and_record


def replace_workflow(run: Run, arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the arguments for a recording workflow that runs the given one. {} if it has another interface."""
    from areal.api import RolloutWorkflow

    workflow, kwargs = arguments[name], arguments.get(f"{name}_kwargs")
    target: Any = workflow
    if isinstance(workflow, str):
        module, _, attribute = workflow.rpartition(".")
        target = getattr(importlib.import_module(module), attribute)
    if not isinstance(target, RolloutWorkflow) and not (
        isinstance(target, type) and issubclass(target, RolloutWorkflow)
    ):
        logger.warning(
            "The samples of %s are not recorded: it is no RolloutWorkflow. `rolloutdeck watch` reads what AReaL writes "
            "with rollout.dump_to_file.", workflow
        )  # fmt: skip
        return {}
    identity = {"RUN_ID": run.uid, "ATTEMPT": run.attempt, "PROJECT": run.project, "RUN": run.name}
    return {name: WORKFLOW, f"{name}_kwargs": {"workflow": workflow, "workflow_kwargs": kwargs, "identity": identity}}
