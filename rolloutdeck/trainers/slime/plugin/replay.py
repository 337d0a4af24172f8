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

from rolloutdeck.errors import Unfit
from rolloutdeck.lib.environment import Settings
from rolloutdeck.lib.log import log
from rolloutdeck.replay.plan import Entry, PinnedArtifact, Plan
from rolloutdeck.safe_pickle.batches.torch_dict import Rows, open_saved
from rolloutdeck.safe_pickle.load.placeholders import Unreadable
from rolloutdeck.trainers.common import patching, pinned_step
from rolloutdeck.trainers.slime.facts import facts_of
from rolloutdeck.trainers.slime.plugin.session import Session, session_of

KIND = "rollout_id"
DEFAULT = "slime.rollout.sglang_rollout.generate_rollout"
SETTING = "rolloutdeck_rollout_function_path"  # in the YAML of `--custom-config-path`
NEEDED = ("tokens", "response_length", "reward", "status")
# Tensors of more than one dimension, or images: not built here.
TENSORS = ("multimodal_inputs", "multimodal_train_inputs", "rollout_routed_experts")

_plans: dict[int, Plan] = {}


def generate_rollout(args, rollout_id, data_source, evaluation=False):  # type: ignore[no-untyped-def]
    """For `--rollout-function-path`. What the plan does not replay, and every eval, comes from the function that
    `rolloutdeck_rollout_function_path` names in the YAML of `--custom-config-path`, slime's own without one.

    Raises hooks.Stop where the plan asks for it, and what generating raises.
    """
    found = None if evaluation else _replayed(args, rollout_id, data_source)
    if found is not None:
        return found
    return generating(args)(args, rollout_id, data_source, evaluation=evaluation)


def generating(args: Any) -> Callable[..., Any]:
    module, _, name = str(getattr(args, SETTING, None) or DEFAULT).rpartition(".")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


@patching.harmless
def _replayed(args: Any, step: int, data_source: Any) -> Any:
    if not Settings.read().plan:
        return None
    session = session_of(args)
    plan = plan_of(session, args)
    entry = plan.resolve(int(step))
    if entry is None:
        return None
    start = time.monotonic()
    try:
        pinned_step.check(plan, entry)
        flagged = flagged_in(entry) if plan.exclude_flagged else ()
        samples = brought(entry, flagged)
    except Exception as error:  # whatever it is, the rollout can be generated
        pinned_step.leave(session.run, plan, entry, step, error, KIND)
        return None
    passed_over(args, data_source)
    seconds = time.monotonic() - start
    without = f"{len(flagged)} flagged samples have no weight (remove_sample)" if flagged else ""
    session.run.report_replay(step, "hit", entry.pin, len(samples), seconds, without, step_kind=KIND)
    log.info("Rollout %d replays pin %d: %d samples in %.1f s.", step, entry.pin, len(samples), seconds)
    return output(samples)


def plan_of(session: Session, args: Any) -> Plan:
    """Asked for once a run."""
    if id(session) not in _plans:
        _plans[id(session)] = session.run.replay_plan(facts=facts_of(vars(args)))
    return _plans[id(session)]


def chosen(entry: Entry) -> tuple[PinnedArtifact, str]:
    """The artifact that holds the rollout, and its file. Raises Unfit."""
    pairs = [(one, name) for one in entry.artifacts for name in one.files if PurePosixPath(name).suffix == ".pt"]
    if len(pairs) != 1:
        raise Unfit(f"the pin has {len(pairs)} rollout files of slime, one is needed")
    return pairs[0]


def flagged_in(entry: Entry) -> list[int]:
    """The places of the samples that are flagged. Raises Unfit where they are not all known, or are all there are."""
    source, name = chosen(entry)
    if unplaced := int(entry.source.get("unplaced", entry.source.get("flagged")) or 0):
        raise Unfit(f"{unplaced} of its flagged samples can't be found in its file, so they can't be left out")
    if source.whole:
        raise Unfit("all its samples are flagged")
    return list(source.flagged.get(name, ()))


def brought(entry: Entry, flagged: Collection[int] = ()) -> list[Any]:
    """The samples of a pin's file, those that are `flagged` without weight: slime zeroes their loss masks, and counts
    them in the rewards of their group (`ray/rollout.py:680`). Raises Unfit, Refused, NotGiven, NotReachable, OSError.
    """
    with pinned_step.brought(entry, *chosen(entry)) as path:
        rows = read(path)
    from slime.utils.types import Sample

    for place in flagged:
        rows[place]["remove_sample"] = True
    return [Sample.from_dict(row) for row in rows]


def read(path: Path) -> list[dict[str, Any]]:
    """The samples of slime's file as plain values. Raises Unfit, Refused, OSError."""
    rows = Rows()
    with open_saved(path) as saved:
        samples = saved.get("samples")
        if not isinstance(samples, list) or not samples:
            raise Unfit("its file holds no samples")
        return [checked(rows.plain(sample), place) for place, sample in enumerate(samples)]


def checked(row: Any, place: int) -> dict[str, Any]:
    """Raises Unfit for a sample that slime could not train on, or that would be another one than was pinned."""
    if not isinstance(row, dict):
        raise Unfit(f"its sample {place} is none")
    if lacking := [name for name in NEEDED if row.get(name) is None]:
        raise Unfit(f"its sample {place} has no {', '.join(lacking)}")
    if tensors := [name for name in TENSORS if row.get(name) is not None]:
        raise Unfit(f"its samples have {', '.join(tensors)}, which are not built here")
    if unread := unread_in(row):
        raise Unfit(f"its sample {place} holds {unread}, which is not built here")
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


@patching.harmless
def passed_over(args: Any, data_source: Any) -> None:
    """The prompts that the rollout would have taken, so that the next one has those that it had in the pinned run."""
    data_source.get_samples(args.rollout_batch_size)


def output(samples: Sequence[Any]) -> Any:
    """Flat, as slime's own loader of rollouts gives them: fragments of one execution keep their `rollout_id`."""
    from slime.rollout.base_types import RolloutFnTrainOutput

    return RolloutFnTrainOutput(samples=list(samples))
