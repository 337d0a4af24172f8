"""The workflow that runs another one and records its trajectories, in AReaL's processes of rollouts.

Source: areal-project/AReaL cbff54d: `RolloutWorkflow` in areal/api/workflow_api.py. A trajectory is a dict of tensors
with one row per sample (areal/workflow/rlvr.py), or a dict of interactions (areal/experimental/openai/types.py).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

from areal import workflow_context
from areal.api import RolloutWorkflow
from areal.utils.dynamic_import import import_from_string

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

STEP_KIND = "policy_version"  # like AReaL's files
TENSORS = ("input_ids", "loss_mask", "attention_mask", "rewards")
GROUND_TRUTH_COLUMNS = ("ground_truth", "answer", "solution", "target")
SKIPPED_COLUMNS = ("messages", "prompt", "response", "images", "image")
NO_TOKENIZER = "samples whose workflow has no tokenizer"
OTHER_RESULT = "trajectories without the tensors of AReaL's workflows"


class RecordingWorkflow(RolloutWorkflow):  # type: ignore[misc]
    """Runs `workflow` (an import path, class or instance) and records what it returns."""

    def __init__(
        self, workflow: Any, workflow_kwargs: Mapping[str, Any] | None = None, identity: Mapping[str, str] | None = None
    ) -> None:
        target = import_from_string(workflow) if isinstance(workflow, str) else workflow
        self.workflow = target(**(workflow_kwargs or {})) if isinstance(target, type) else target
        self._identity = dict(identity or {})
        self._decode: Callable[[Any], str] | None = None

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        result = await self.workflow.arun_episode(engine, data)
        if result is not None:
            self._record(result, dict(data))
        return result

    @catch_errors
    def _record(self, result: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        session = get_session("areal", lambda: TrainerSession(self._open_run()))
        context = workflow_context.get()
        values = list(result.values())
        trajectories = [result] if TENSORS[0] in result else [value.to_tensor_dict() for value in values]
        row: dict[str, Any] = {"task_id": context.task_id}
        add_columns(row, read_columns(data), SKIPPED_COLUMNS)
        turns = {"trajectory": uuid4().hex} if len(trajectories) > 1 else {}  # the interactions of one episode
        for turn, trajectory in enumerate(trajectories):
            self._record_trajectory(session, context, trajectory, {**row, **turns, **({"turn": turn} if turns else {})})

    def _record_trajectory(
        self, session: TrainerSession, context: Any, trajectory: Mapping[str, Any], row: Mapping[str, Any]
    ) -> None:
        decode = self._decode = self._decode or build_decoder(self.workflow)
        reason = NO_TOKENIZER if decode is None else OTHER_RESULT
        if decode is None or any(trajectory.get(name) is None for name in TENSORS):
            return session.count_lost(reason)
        split, versions = "eval" if context.is_eval else "train", trajectory.get("versions")
        step = 0 if versions is None else max(0, int(versions.max()))
        arrays = {name: value.tolist() for name, value in trajectory.items() if hasattr(value, "tolist")}
        rows = len(arrays["rewards"])

        def build() -> list[TokenSample]:
            return [build_sample(dict(iter_values(arrays, index)), decode, row) for index in range(rows)]

        return session.collect_samples(build, rows, step, split, step_kind=STEP_KIND)

    def _open_run(self) -> Any:
        """Opens the run of the trainer's process in this process."""
        for name, value in self._identity.items():
            os.environ.setdefault(f"ROLLOUTDECK_{name}", value)
        producer = f"{socket.gethostname()}-{os.getpid()}"
        run = open_trainer_run("areal", "", "", "", producer=producer, exit_timeout=EXIT_SECONDS)
        run.ends_here = False
        return run


def build_decoder(workflow: Any) -> Callable[[Any], str] | None:
    """Returns the function that decodes ids with the workflow's tokenizer; None if it has none."""
    tokenizer = getattr(workflow, "tokenizer", None)
    if tokenizer is None or isinstance(tokenizer, str):
        return None
    decoder = copy_tokenizer(tokenizer)
    return lambda ids: str(decoder.decode(ids, skip_special_tokens=False))


def iter_values(arrays: Mapping[str, Any], index: int) -> Iterator[tuple[str, Any]]:
    """Yields the values of one sample, without padding."""
    length = sum(map(int, arrays["attention_mask"][index]))
    for name, rows in arrays.items():
        value = rows[index]
        yield name, value[:length] if isinstance(value, list) else value


def build_sample(values: Mapping[str, Any], decode: Callable[[Any], str], row: Mapping[str, Any]) -> TokenSample:
    """Returns the sample. Its response starts at the first token of the loss mask."""
    ids, mask = values["input_ids"], [int(value) for value in values["loss_mask"]]
    start = mask.index(1) if 1 in mask else len(ids)
    versions = [version for version in (values.get("versions") or ())[start:] if version >= 0]
    fields = {**row, "score": values["rewards"], "policy_version": min(versions, default=None)}
    if len(set(versions)) > 1:
        fields["weight_versions"] = sorted(set(versions))
    logprobs = values.get("logprobs")
    return TokenSample(ids[:start], ids[start:], decode, mask[start:], logprobs and logprobs[start:], fields)


def read_columns(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of the data set that are text or numbers, and the ground truth among them."""
    row = {str(name): value for name, value in data.items() if isinstance(value, (str, int, float))}
    truth = next((str(row[name]) for name in GROUND_TRUTH_COLUMNS if name in row), None)
    return row if truth is None else {**row, "ground_truth": truth}
