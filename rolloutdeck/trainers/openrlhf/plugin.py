"""The live plug-in of OpenRLHF, in its Ray processes: wraps the methods that have samples, rewards and metrics.

OpenRLHF has no hook with the step, so these methods are wrapped when their modules are imported. Source: OpenRLHF
3c3be62: `BasePPOTrainer` in openrlhf/trainer/ppo_trainer.py, `RemoteExperienceMaker` and `SamplesGenerator` in
openrlhf/trainer/ppo_utils/, `Experience` in openrlhf/trainer/ppo_utils/experience.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.trainers.common import (
    EXIT_SECONDS,
    TokenSample,
    TrainerSession,
    bind_arguments,
    catch_errors,
    copy_tokenizer,
    drop_none,
    get_session,
    open_trainer_run,
    patch_when_imported,
    wrap_method,
)

TRAINER = "openrlhf.trainer.ppo_trainer"
EXPERIENCE_MAKER = "openrlhf.trainer.ppo_utils.experience_maker"
GENERATOR = "openrlhf.trainer.ppo_utils.samples_generator"
STEP_ATTRIBUTE = "_rolloutdeck_step"  # of an experience maker: the step whose batch it is about to make
SECRET_KEYS = ("key",)  # `--logger.wandb.key`
MAX_FRAMES = 30


@catch_errors
def prepare_process() -> None:
    """Wraps OpenRLHF's methods in this process when it imports them. Ray calls this when a process starts."""
    for name in (TRAINER, EXPERIENCE_MAKER, GENERATOR):
        patch_when_imported(name, __name__)


def patch(module: ModuleType) -> None:
    """Wraps the methods of one of the modules."""
    if module.__name__ == TRAINER:
        wrap_method(module.BasePPOTrainer, "train_step", wrap_train_step)
        wrap_method(module.BasePPOTrainer, "save_logs_and_checkpoints", wrap_logs)
        wrap_method(module.BasePPOTrainer, "save_best_checkpoint", wrap_eval_metrics)
    elif module.__name__ == EXPERIENCE_MAKER:
        wrap_method(module.RemoteExperienceMaker, "make_experience_batch", wrap_experience_batch)
    else:
        wrap_method(module.SamplesGenerator, "generate_eval_samples", wrap_eval_samples)


def wrap_train_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def train_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        catch_errors(_mark_step)(self, bind_arguments(original, (self, *args), kwargs))
        return original(self, *args, **kwargs)

    return train_step


def _mark_step(trainer: Any, arguments: Mapping[str, Any]) -> None:
    """The trainer logs the metrics of this batch under the next number."""
    setattr(trainer.experience_maker, STEP_ATTRIBUTE, int(arguments["global_step"]) + 1)


def wrap_experience_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    def make_experience_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        experiences = original(self, *args, **kwargs)
        record_experiences(self, experiences, getattr(self, STEP_ATTRIBUTE, None), "train")
        return experiences

    return make_experience_batch


def wrap_eval_samples(original: Callable[..., Any]) -> Callable[..., Any]:
    def generate_eval_samples(self: Any, *args: Any, **kwargs: Any) -> Any:
        experiences = original(self, *args, **kwargs)
        record_experiences(self, experiences, find_global_step(), "eval")
        return experiences

    return generate_eval_samples


def wrap_logs(original: Callable[..., Any]) -> Callable[..., Any]:
    return wrap_metrics(original, "logs_dict", "train")


def wrap_eval_metrics(original: Callable[..., Any]) -> Callable[..., Any]:
    return wrap_metrics(original, "eval_metrics", "eval")


def wrap_metrics(original: Callable[..., Any], name: str, prefix: str) -> Callable[..., Any]:
    """Records the metrics in the argument `name`, under the names that OpenRLHF's own loggers use."""

    def log(self: Any, *args: Any, **kwargs: Any) -> Any:
        record_metrics(self, bind_arguments(original, (self, *args), kwargs), name, prefix)
        return original(self, *args, **kwargs)

    return log


@catch_errors
def record_metrics(trainer: Any, arguments: Mapping[str, Any], name: str, prefix: str) -> None:
    metrics = {f"{prefix}/{key}": value for key, value in (arguments[name] or {}).items() if key != "generated_samples"}
    open_session(trainer.args).run.log(metrics, arguments["global_step"])


def find_global_step() -> int | None:
    """Returns `global_step` of the caller that evaluates, found in the stack: the generator is not given it."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        step = frame.f_locals.get("global_step")
        if isinstance(step, int):
            return step
        frame = frame.f_back
    return None


@catch_errors
def record_experiences(owner: Any, experiences: Sequence[Any], step: int | None, split: str) -> None:
    """Records the samples of an experience maker or a generator (`owner`), which have `args` and `tokenizer`."""
    session, batches = open_session(owner.args), [freeze_experience(experience) for experience in experiences]
    rows = sum(len(batch["sequences"]) for batch in batches)
    if step is None:
        return session.count_lost("samples whose step is not known", rows)
    if "decoder" not in vars(session):  # a copy takes long, so it is made once
        vars(session)["decoder"] = copy_tokenizer(owner.tokenizer)
    decoder = vars(session)["decoder"]

    def decode(ids: Sequence[int]) -> str:
        return str(decoder.decode(ids, skip_special_tokens=True))

    def build() -> list[TokenSample]:
        return [build_sample(batch, row, decode) for batch in batches for row in range(len(batch["sequences"]))]

    return session.submit_samples(build, rows, step, split)


def freeze_experience(experience: Any) -> dict[str, Any]:
    """Returns the present values: the trainer replaces them later, but does not change tensors in place."""
    return {**vars(experience), "info": dict(experience.info)}


def build_sample(batch: Mapping[str, Any], row: int, decode: Callable[[Any], str]) -> TokenSample:
    """Returns one sample of an Experience: B x T tokens; masks and log-probs (B x T-1) start at the second token."""
    present = [bool(value) for value in batch["attention_mask"][row].tolist()]

    def select(values: Any, *, shifted: bool = True) -> list[Any] | None:
        if values is None:
            return None
        items = [0, *values[row].tolist()] if shifted else values[row].tolist()
        return [item for item, is_token in zip(items, present, strict=True) if is_token]

    ids, mask = select(batch["sequences"], shifted=False) or [], select(batch["action_mask"]) or []
    mask = [int(value) for value in mask]
    start = mask.index(1) if 1 in mask else len(ids)
    logprobs, advantages = select(batch.get("rollout_log_probs")), select(batch.get("advantages"))
    fields: dict[str, Any] = {
        "prompt": pick(batch, "prompts", row),
        "ground_truth": pick(batch, "labels", row),
        "images": pick_images(batch, row),
        "score": first_number(batch["info"].get("reward"), batch.get("rewards"), row=row),
        "truncated": None if batch.get("truncated") is None else bool(batch["truncated"][row]),
        "advantages": advantages and advantages[start:],
        "metrics": drop_none({name: first_number(column, row=row) for name, column in batch["info"].items()}),
    }
    return TokenSample(ids[:start], ids[start:], decode, mask[start:], logprobs and logprobs[start:], fields)


def pick(batch: Mapping[str, Any], name: str, row: int) -> Any:
    """Returns a text of a list; labels may be other values."""
    values = batch.get(name)
    value = values[row] if values is not None and row < len(values) else None
    return value if value is None or isinstance(value, str) else str(value)


def pick_images(batch: Mapping[str, Any], row: int) -> list[str] | None:
    """Returns the paths or URLs of the images of a row's prompt; they are shown as names."""
    column = batch.get("images") or ()
    images = column[row] if row < len(column) else None
    return [
        image for image in ([images] if isinstance(images, str) else images or ()) if isinstance(image, str)
    ] or None


def first_number(*columns: Any, row: int) -> float | None:
    """Returns the row's number in the first column that has one per row."""
    for column in columns:
        if column is not None and getattr(column, "ndim", 0) == 1 and row < len(column):
            return float(column[row])
    return None


def open_session(args: Any) -> TrainerSession:
    """Returns the session of this process; the first call opens it."""
    return get_session("openrlhf", lambda: TrainerSession(open_openrlhf_run(args)))


def open_openrlhf_run(args: Any) -> Run:
    """Opens the run, named by `--logger.wandb.project` and `--logger.wandb.run_name`."""
    names, path = args.logger.wandb, str(args.ckpt.path or "")
    folder = str(Path(path).absolute()) if path else ""
    config = convert_arguments(args)
    project, name = str(names.project or ""), str(names.run_name or "")
    return open_trainer_run("openrlhf", project, name, folder, config=config, exit_timeout=EXIT_SECONDS)


def convert_arguments(args: Any) -> Any:
    """Returns nested arguments as dicts, without keys of other services."""
    if not isinstance(args, SimpleNamespace):
        return args
    return {name: convert_arguments(value) for name, value in vars(args).items() if name not in SECRET_KEYS}
