"""The live plug-in of NeMo-RL: a backend of its logger gets the metrics, and its dumps of samples become rows.

Source: NVIDIA-NeMo/RL 7ea279a. `Logger` in nemo_rl/utils/logger.py passes metrics to each item of `loggers`; GRPO, PPO
and distillation call its `log_batched_dict_as_jsonl` once per step and validation, in the driver process.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from rolloutdeck.client import Run
from rolloutdeck.protocol import GUIDANCE_FIELD
from rolloutdeck.trainers.common import (
    EXIT_SECONDS,
    TokenSelection,
    TrainerSession,
    bind_arguments,
    catch_errors,
    drop_none,
    follows_guidance,
    get_session,
    open_trainer_run,
)
from rolloutdeck.trainers.nemo_rl import DUMP_FILE
from rolloutdeck.trainers.nemo_rl.guidance import NemoGuidance, follow_rules

SPLITS = {"train": "train", "val": "eval"}
LoggerType = TypeVar("LoggerType")
NemoRow = dict[str, Any]

TOKEN_KEYS = {"advantages": "advantages", "logprobs": "generation_logprobs", "prev_logprobs": "prev_logprobs"}
PADDED_KEYS = ("token_ids", "token_loss_mask", *TOKEN_KEYS.values())
# With dynamic sampling, `rewards` are those of other rows: of all that were generated, cut to the same length.
REWARD_KEYS = ("filtered_rewards", "rewards")
MAPPED_KEYS = ("content", "input_lengths", "idx", *REWARD_KEYS, *PADDED_KEYS)


def record(logger: LoggerType, config: Any = None) -> LoggerType:
    """Records what NeMo-RL's `Logger` is given, and returns the logger. Never raises.

    Call it in the start script, after `setup()`. `config`: the MasterConfig; its `logger.wandb` names the run. With
    ROLLOUTDECK_GUIDANCE=on, trainings of this process follow the guidance rules of the project.
    """
    _record_logger(logger, config)
    return logger


class RolloutdeckBackend:
    """One of the backends in `Logger.loggers`; it has the methods of `LoggerInterface`."""

    def __init__(self, session: TrainerSession, guidance: NemoGuidance | None) -> None:
        self.session, self.guidance = session, guidance

    @catch_errors
    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        if self.guidance is not None and prefix == "train":
            self.guidance.report(step)
        if step_metric is None:  # else the metrics of a monitor, which counts its own steps
            self.session.run.log({f"{prefix}/{name}" if prefix else name: metrics[name] for name in metrics}, step)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """The run has the config."""

    def log_histogram(self, histogram: list[Any], step: int, name: str) -> None:
        """Histograms and figures are not recorded."""

    def log_plot(self, figure: Any, step: int, name: str) -> None:
        """Histograms and figures are not recorded."""

    @catch_errors
    def finish(self) -> None:
        self.session.close("finished")


@catch_errors
def _record_logger(logger: Any, config: Any) -> None:
    if any(isinstance(backend, RolloutdeckBackend) for backend in logger.loggers):
        return
    settings = config.model_dump() if hasattr(config, "model_dump") else config
    session = get_session("nemo-rl", lambda: TrainerSession(open_nemo_run(settings)))
    guidance = follow_rules(session.run, split_content) if follows_guidance() else None
    logger.loggers.append(RolloutdeckBackend(session, guidance))
    write_file = logger.log_batched_dict_as_jsonl

    @functools.wraps(write_file)
    def write_and_record(*args: Any, **kwargs: Any) -> None:
        write_file(*args, **kwargs)
        record_batch(session, guidance, **bind_arguments(write_file, args, kwargs))

    logger.log_batched_dict_as_jsonl = write_and_record


def open_nemo_run(config: Mapping[str, Any] | None) -> Run:
    """Opens the run. A folder of checkpoints identifies it, so that a resumed training continues its run."""
    config = config or {}
    names = (config.get("logger") or {}).get("wandb") or {}
    checkpoints = config.get("checkpointing") or {}
    folder = str(Path(checkpoints["checkpoint_dir"]).absolute()) if checkpoints.get("enabled") else ""
    project, name = str(names.get("project") or ""), str(names.get("name") or "")
    return open_trainer_run("nemo-rl", project, name, folder, config=dict(config), exit_timeout=EXIT_SECONDS)


@catch_errors
def record_batch(
    session: TrainerSession, guidance: NemoGuidance | None, to_log: Mapping[str, Any], filename: str
) -> None:
    """Records the rows of `{train,val}_data_step{N}.jsonl`; other files have no samples."""
    if (match := DUMP_FILE.search(filename)) and "content" in to_log:
        batch, step, split = dict(to_log), int(match[2]), SPLITS[match[1]]
        if guidance is not None and split == "train":
            guidance.report(step)
            marks = guidance.list_marks(len(batch["content"]))
            batch |= {GUIDANCE_FIELD: marks} if any(marks) else {}

        def job() -> None:
            session.run.log_samples(build_nemo_rows(batch, session.selection, split, step), step, split)

        session.submit(job, len(batch["content"]))


def build_nemo_rows(batch: Mapping[str, Any], selection: TokenSelection, split: str, step: int) -> list[NemoRow]:
    """Returns one row per sample: each value of `batch` has one item per sample."""
    columns = {name: values for name, values in batch.items() if len(values) == len(batch["content"])}
    rewards = next((columns[name] for name in REWARD_KEYS if name in columns), None)
    rows = []
    for index, content in enumerate(columns["content"]):
        extras = {name: convert_item(values[index]) for name, values in columns.items() if name not in MAPPED_KEYS}
        score = None if rewards is None else convert_item(rewards[index])
        rows.append(drop_none({**split_content(content), "score": score, **extras}))
    for index in selection.select_rows([str(row["prompt"]) for row in rows], split, step):
        rows[index] |= extract_tokens({name: values[index] for name, values in columns.items()})
    return rows


def split_content(content: Any) -> NemoRow:
    """Returns prompt and response. A validation has messages; a train step has only their texts, without roles.

    Texts without roles are assumed to alternate and to end with the assistant, after a system text if they are odd.
    """
    items: list[Any] = [content] if isinstance(content, str) else list(content)
    if items and all(isinstance(item, Mapping) and "role" in item for item in items):
        roles = [item["role"] for item in items]
        first = roles.index("user") if "user" in roles else 0
        start = roles.index("assistant", first) if "assistant" in roles[first:] else len(roles)
        return {"prompt": items[:start], "response": items[start:]}
    texts = [item if isinstance(item, str) else str(item) for item in items]
    start = 1 + len(texts) % 2 if len(texts) > 1 else 0
    return {"prompt": "\n".join(texts[:start]), "response": "\n".join(texts[start:])}


def extract_tokens(sample: Mapping[str, Any]) -> NemoRow:
    """Returns the token fields without the padding. The response starts at the first token that is trained."""
    padded = {name: convert_item(sample[name]) for name in PADDED_KEYS if name in sample}
    tokens, trained = padded.get("token_ids"), padded.get("token_loss_mask")
    if tokens is None or trained is None:
        return {}
    end = int(sample.get("input_lengths", len(tokens)))
    mask = [int(value) for value in trained[:end]]
    start = mask.index(1) if 1 in mask else end
    row: NemoRow = {"prompt_ids": tokens[:start], "response_ids": tokens[start:end], "response_mask": mask[start:]}
    for key, name in TOKEN_KEYS.items():
        if len(padded.get(name) or ()) == len(tokens):
            row[key] = padded[name][start:end]
    return row


def convert_item(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
