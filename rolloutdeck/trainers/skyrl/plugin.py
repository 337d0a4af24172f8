"""The live plug-in of SkyRL: its experiment gets a generator and a tracker that also record.

Source: NovaSky-AI/SkyRL a956457. `BasePPOExp` in skyrl/train/entrypoints/main_base.py has the methods `get_generator`
and `get_tracker` for subclasses, and `main` there starts the module that `trainer.override_entrypoint` names. What a
generator takes and returns: skyrl/train/generators/base.py.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rolloutdeck.client import Run
from rolloutdeck.trainers.common import (
    EXIT_SECONDS,
    TokenSample,
    TrainerSession,
    add_columns,
    catch_errors,
    copy_tokenizer,
    get_session,
    open_trainer_run,
)

Experiment = TypeVar("Experiment")

TOKEN = "ROLLOUTDECK_TOKEN"
ENTRYPOINT_ARGUMENT = "trainer.override_entrypoint="
SKIPPED_COLUMNS = ("prompt", "response")


def main() -> None:
    """The start script of `trainer.override_entrypoint=rolloutdeck.trainers.skyrl`: SkyRL's own, with `record`."""
    import ray
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import validate_cfg
    from skyrl.train.utils.utils import initialize_ray

    # SkyRL's config does not know the argument that names this module.
    words = [word for word in sys.argv[1:] if not word.startswith(ENTRYPOINT_ARGUMENT)]
    config = SkyRLTrainConfig.from_cli_overrides(words)
    validate_cfg(config)
    initialize_ray(config)
    variables = {name: value for name, value in os.environ.items() if name.startswith("ROLLOUTDECK_")}
    token = variables.pop(TOKEN, "")  # Ray shows variables in its dashboard, but no arguments
    ray.get(ray.remote(num_cpus=1, runtime_env={"env_vars": variables})(run_experiment).remote(config, token))


def run_experiment(config: Any, token: str = "") -> None:
    from skyrl.train.entrypoints.main_base import BasePPOExp

    if token:
        os.environ[TOKEN] = token
    record(BasePPOExp(config)).run()


def record(experiment: Experiment) -> Experiment:
    """Records what a `BasePPOExp` generates and logs, and returns it. Call it before `run()`. Never raises."""
    _record_experiment(experiment)
    return experiment


@catch_errors
def _record_experiment(experiment: Any) -> None:
    session = get_session("skyrl", lambda: TrainerSession(open_skyrl_run(experiment.cfg)))
    get_generator, get_tracker, run = experiment.get_generator, experiment.get_tracker, experiment.run
    decode = build_decoder(experiment.tokenizer)

    @functools.wraps(get_generator)
    def get_recording_generator(*args: Any, **kwargs: Any) -> Any:
        generator = get_generator(*args, **kwargs)
        record_generator(session, generator, decode)
        return generator

    @functools.wraps(get_tracker)
    def get_recording_tracker(*args: Any, **kwargs: Any) -> Any:
        tracker = get_tracker(*args, **kwargs)
        record_tracker(session, tracker)
        return tracker

    @functools.wraps(run)
    def run_and_close(*args: Any, **kwargs: Any) -> Any:
        outcome = "failed"
        try:
            result = run(*args, **kwargs)
            outcome = "finished"
            return result
        finally:
            catch_errors(session.close)(outcome)

    experiment.get_generator, experiment.get_tracker = get_recording_generator, get_recording_tracker
    if not inspect.iscoroutinefunction(run):  # an evaluation without a training
        experiment.run = run_and_close


def open_skyrl_run(config: Any) -> Run:
    """Opens the run, named by `trainer.project_name` and `trainer.run_name`."""
    trainer = config.trainer
    names = str(trainer.project_name or ""), str(trainer.run_name or "")
    path = str(trainer.ckpt_path or "")
    folder = str(Path(path).absolute()) if path and "://" not in path else ""
    return open_trainer_run("skyrl", *names, folder, config=config, exit_timeout=EXIT_SECONDS)


def build_decoder(tokenizer: Any) -> Callable[[Any], str]:
    decoder = copy_tokenizer(tokenizer)
    return lambda ids: str(decoder.decode(ids, skip_special_tokens=True))


@catch_errors
def record_tracker(session: TrainerSession, tracker: Any) -> None:
    """Records what SkyRL passes to `tracker.log(data, step, …)`."""
    log = tracker.log

    @functools.wraps(log)
    def log_and_record(data: Mapping[str, Any], step: int, *args: Any, **kwargs: Any) -> Any:
        catch_errors(session.run.log)(data, step)
        return log(data, step, *args, **kwargs)

    tracker.log = log_and_record


@catch_errors
def record_generator(session: TrainerSession, generator: Any, decode: Callable[[Any], str]) -> None:
    """Records the samples of each call of `generator.generate(input_batch)`."""
    generate = generator.generate

    @functools.wraps(generate)
    async def generate_and_record(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        output = await generate(input_batch, *args, **kwargs)
        record_generation(session, input_batch, output, decode)
        return output

    generator.generate = generate_and_record


@catch_errors
def record_generation(
    session: TrainerSession, batch: Mapping[str, Any], output: Mapping[str, Any], decode: Callable[[Any], str]
) -> None:
    metadata = batch.get("batch_metadata")
    if metadata is None:
        session.count_lost("generations without a step (batch_metadata)", len(output["response_ids"]))
        return
    # An evaluation without a training has no step. The trainer replaces values of `output`, so it is copied.
    step, split, values = metadata.global_step or 0, metadata.training_phase, dict(output)
    session.collect_samples(lambda: build_samples(batch, values, decode), len(values["response_ids"]), step, split)


def build_samples(
    batch: Mapping[str, Any], output: Mapping[str, Any], decode: Callable[[Any], str]
) -> list[TokenSample]:
    """Returns one sample per response. With `step_wise_trajectories` each turn of a trajectory is a response."""
    prompts = batch["prompts"]
    inputs = {trajectory.to_string(): index for index, trajectory in enumerate(batch.get("trajectory_ids") or ())}
    turns, samples = Counter[str](), []
    for index, response_ids in enumerate(output["response_ids"]):
        row: dict[str, Any] = {"score": compute_score(output["rewards"][index])}
        source = index
        if trajectory := pick(output, "trajectory_ids", index):
            name = trajectory.to_string()
            source = inputs.get(name, index)
            row |= {"trajectory": name, "turn": turns[name]}
            turns[name] += 1
        if trajectory := trajectory or pick(batch, "trajectory_ids", index):
            row |= {"group": str(trajectory.instance_id), "index": trajectory.repetition_id}
        if not row.get("turn") and source < len(prompts):
            row["prompt"] = prompts[source]
        row["env_class"] = pick(batch, "env_classes", source)
        add_extras(row, pick(batch, "env_extras", source) or {})
        if reason := pick(output, "stop_reasons", index):
            row |= {"finish_reason": reason, "truncated": reason == "length"}
        row["metrics"] = pick(output, "env_metrics", index)
        prompt_ids, mask = output["prompt_token_ids"][index], pick(output, "loss_masks", index)
        logprobs = pick(output, "rollout_logprobs", index)
        samples.append(TokenSample(prompt_ids, response_ids, decode, mask, logprobs, row))
    return samples


def pick(values: Mapping[str, Any], name: str, index: int) -> Any:
    """Returns the item of an optional list."""
    items = values.get(name)
    return items[index] if items is not None and index < len(items) else None


def compute_score(reward: Any) -> float | None:
    """Returns the reward, or the sum of the rewards of its tokens."""
    return float(sum(reward)) if isinstance(reward, (list, tuple)) else None if reward is None else float(reward)


def add_extras(row: dict[str, Any], extras: Mapping[str, Any]) -> None:
    """Adds the columns of the data set, and the ground truth of its `reward_spec` (or `reward_model`)."""
    add_columns(row, extras, SKIPPED_COLUMNS)
    specs = (extras.get(name) for name in ("reward_spec", "reward_model"))
    truth = next((spec.get("ground_truth") for spec in specs if isinstance(spec, Mapping)), None)
    if truth is not None:
        row["ground_truth"] = truth if isinstance(truth, str) else str(truth)
