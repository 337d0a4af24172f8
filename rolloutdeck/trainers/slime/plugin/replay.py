"""`generate_rollout`: a rollout that the plan has a pin for is served from there, every other one is generated.

The bytes are fetched when the rollout comes, into a folder of this process alone, checked by their hash and only read:
slime would unpickle them. A pin that can't be had or does not fit costs a generation, never the run, unless the plan
says to stop.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.lib import Settings, logger
from rolloutdeck.replay import PinnedArtifact, PlanEntry, PlanRevision
from rolloutdeck.safe_pickle.batches import RowConverter, open_torch_dict
from rolloutdeck.safe_pickle.load import Unreadable
from rolloutdeck.trainers.common import catch_errors, check_pinned_step, download_pinned_file, report_not_replayed
from rolloutdeck.trainers.slime.facts import build_argument_facts
from rolloutdeck.trainers.slime.plugin.session import SlimeSession, get_slime_session

KIND = "rollout_id"
DEFAULT_ROLLOUT_FUNCTION = "slime.rollout.sglang_rollout.generate_rollout"
SETTING = "rolloutdeck_rollout_function_path"  # in the YAML of `--custom-config-path`
NEEDED = ("tokens", "response_length", "reward", "status")
# Tensors of more than one dimension, or images: not built here.
TENSORS = ("multimodal_inputs", "multimodal_train_inputs", "rollout_routed_experts")

_plans: dict[int, PlanRevision] = {}


def generate_rollout(args, rollout_id, data_source, evaluation=False):  # type: ignore[no-untyped-def]
    """For `--rollout-function-path`. What the plan does not replay, and every eval, comes from the function that
    `rolloutdeck_rollout_function_path` names in the YAML of `--custom-config-path`, slime's own without one.

    Raises hooks.Stop where the plan asks for it, and what generating raises.
    """
    found = None if evaluation else _replayed(args, rollout_id, data_source)
    if found is not None:
        return found
    return load_rollout_function(args)(args, rollout_id, data_source, evaluation=evaluation)


def load_rollout_function(args: Any) -> Callable[..., Any]:
    module, _, name = str(getattr(args, SETTING, None) or DEFAULT_ROLLOUT_FUNCTION).rpartition(".")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


@catch_errors
def _replayed(args: Any, step: int, data_source: Any) -> Any:
    if not Settings.from_environment().plan:
        return None
    session = get_slime_session(args)
    plan = load_session_plan(session, args)
    entry = plan.resolve(int(step))
    if entry is None:
        return None
    start = time.monotonic()
    try:
        check_pinned_step(plan, entry)
        flagged = find_flagged_samples(entry) if plan.exclude_flagged else ()
        samples = load_pinned_samples(entry, flagged)
    except Exception as error:  # whatever it is, the rollout can be generated
        report_not_replayed(session.run, plan, entry, step, error, KIND)
        return None
    passed_over(args, data_source)
    seconds = time.monotonic() - start
    without = f"{len(flagged)} flagged samples have no weight (remove_sample)" if flagged else ""
    session.run.report_replay(step, "hit", entry.pin, len(samples), seconds, without, step_kind=KIND)
    logger.info("Rollout %d replays pin %d: %d samples in %.1f s.", step, entry.pin, len(samples), seconds)
    return output(samples)


def load_session_plan(session: SlimeSession, args: Any) -> PlanRevision:
    """Asked for once a run."""
    if id(session) not in _plans:
        _plans[id(session)] = session.run.replay_plan(facts=build_argument_facts(vars(args)))
    return _plans[id(session)]


def chosen(entry: PlanEntry) -> tuple[PinnedArtifact, str]:
    """The artifact that holds the rollout, and its file. Raises NotReplayableError."""
    pairs = [(one, name) for one in entry.artifacts for name in one.files if PurePosixPath(name).suffix == ".pt"]
    if len(pairs) != 1:
        raise NotReplayableError(f"the pin has {len(pairs)} rollout files of slime, one is needed")
    return pairs[0]


def find_flagged_samples(entry: PlanEntry) -> list[int]:
    """The places of the samples that are flagged. Raises NotReplayableError where they are not all known, or are all
    there are."""
    source, name = chosen(entry)
    if unplaced := int(entry.source.get("unplaced", entry.source.get("flagged")) or 0):
        raise NotReplayableError(
            f"{unplaced} of its flagged samples can't be found in its file, so they can't be left out"
        )
    if source.whole:
        raise NotReplayableError("all its samples are flagged")
    return list(source.flagged.get(name, ()))


def load_pinned_samples(entry: PlanEntry, flagged: Collection[int] = ()) -> list[Any]:
    """The samples of a pin's file, those that are `flagged` without weight: slime zeroes their loss masks, and counts
    them in the rewards of their group (`ray/rollout.py:680`). Raises NotReplayableError, SafePickleError,
    DownloadError, ServerUnreachableError, OSError.
    """
    with download_pinned_file(entry, *chosen(entry)) as path:
        rows = read_rollout_samples(path)
    from slime.utils.types import Sample

    for place in flagged:
        rows[place]["remove_sample"] = True
    return [Sample.from_dict(row) for row in rows]


def read_rollout_samples(path: Path) -> list[dict[str, Any]]:
    """The samples of slime's file as plain values. Raises NotReplayableError, SafePickleError, OSError."""
    rows = RowConverter()
    with open_torch_dict(path) as saved:
        samples = saved.get("samples")
        if not isinstance(samples, list) or not samples:
            raise NotReplayableError("its file holds no samples")
        return [checked(rows.plain(sample), place) for place, sample in enumerate(samples)]


def checked(row: Any, place: int) -> dict[str, Any]:
    """Raises NotReplayableError for a sample that slime could not train on, or that would be another one than was
    pinned."""
    if not isinstance(row, dict):
        raise NotReplayableError(f"its sample {place} is none")
    if lacking := [name for name in NEEDED if row.get(name) is None]:
        raise NotReplayableError(f"its sample {place} has no {', '.join(lacking)}")
    if tensors := [name for name in TENSORS if row.get(name) is not None]:
        raise NotReplayableError(f"its samples have {', '.join(tensors)}, which are not built here")
    if unread := unread_in(row):
        raise NotReplayableError(f"its sample {place} holds {unread}, which is not built here")
    return row


def unread_in(value: Any) -> str:
    """The first value that the safe reader left inert; "" where there is none."""
    if isinstance(value, Unreadable):
        return str(value)
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)) or (value and isinstance(value[0], (int, float))):
        return ""
    return next((found for one in value if (found := unread_in(one))), "")


@catch_errors
def passed_over(args: Any, data_source: Any) -> None:
    """The prompts that the rollout would have taken, so that the next one has those that it had in the pinned run."""
    data_source.get_samples(args.rollout_batch_size)


def output(samples: Sequence[Any]) -> Any:
    """Flat, as slime's own loader of rollouts gives them: fragments of one execution keep their `rollout_id`."""
    from slime.rollout.base_types import RolloutFnTrainOutput

    return RolloutFnTrainOutput(samples=list(samples))
