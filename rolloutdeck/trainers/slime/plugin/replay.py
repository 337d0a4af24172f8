"""`generate_rollout`: serves a rollout from its pin if the plan has one, and generates all others.

The file is downloaded when the rollout starts, into a folder of this process only, checked by its hash and only parsed:
slime would unpickle it. If a pin can't be downloaded or does not fit, the rollout is generated; the run ends only if
the plan says to stop.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.lib import Settings
from rolloutdeck.replay import PinnedArtifact, PlanEntry, PlanRevision
from rolloutdeck.safe_pickle.batches import RowConverter, open_torch_dict
from rolloutdeck.safe_pickle.load import Unreadable
from rolloutdeck.trainers.common import (
    PlanRequest,
    build_selection_fields,
    catch_errors,
    check_pinned_step,
    download_pinned_file,
    report_not_replayed,
)
from rolloutdeck.trainers.slime.facts import build_argument_facts
from rolloutdeck.trainers.slime.plugin.guidance import CONVERT_ARGUMENT, start_guidance
from rolloutdeck.trainers.slime.plugin.session import SlimeSession, get_slime_session

STEP_KIND = "rollout_id"
DEFAULT_ROLLOUT_FUNCTION = "slime.rollout.sglang_rollout.generate_rollout"
FUNCTION_SETTING = "rolloutdeck_rollout_function_path"  # in the YAML of `--custom-config-path`
REQUIRED_KEYS = ("tokens", "response_length", "reward", "status")
# Tensors of more than one dimension, or images: they are not rebuilt.
UNSUPPORTED_KEYS = ("multimodal_inputs", "multimodal_train_inputs", "rollout_routed_experts")
TOP_P_KEYS = ("rollout_top_p_token_ids", "rollout_top_p_token_offsets")  # the tokens that top-p left for each position

_requests: dict[int, PlanRequest] = {}  # by the id of the session


def generate_rollout(args, rollout_id, data_source, evaluation=False):  # type: ignore[no-untyped-def]
    """For `--rollout-function-path`. Rollouts that the plan does not replay, and every eval, are generated.

    The function that generates is `rolloutdeck_rollout_function_path` in the YAML of `--custom-config-path`, by default
    slime's own. Raises ReplayStoppedError if the plan says to stop, and any error of the generation.
    """
    start_guidance(args)
    replayed = None if evaluation else _try_replay(args, rollout_id, data_source)
    if replayed is not None:
        return replayed
    return load_rollout_function(args)(args, rollout_id, data_source, evaluation=evaluation)


def load_rollout_function(args: Any) -> Callable[..., Any]:
    module, _, name = str(getattr(args, FUNCTION_SETTING, None) or DEFAULT_ROLLOUT_FUNCTION).rpartition(".")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


@catch_errors
def _try_replay(args: Any, step: int, data_source: Any) -> Any:
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
        selected = find_selected_samples(entry) if plan.changes_selected else ()
        samples = load_pinned_samples(entry, selected)
        check_top_p_tokens(args, samples)
    except Exception as error:  # after any error the rollout can be generated
        report_not_replayed(session.run, plan, entry, step, error, STEP_KIND)
        return None
    skip_prompts(args, data_source)
    seconds = time.monotonic() - start
    exclusion = f"{len(selected)} {entry.selected_word} samples have no weight (remove_sample)" if selected else ""
    details = {"step_kind": STEP_KIND, "source": str(entry), **build_selection_fields(entry, len(selected))}
    session.run.report_replay(step, "hit", entry.pin, len(samples), seconds, exclusion, **details)
    return build_output(samples)


def load_session_plan(session: SlimeSession, args: Any) -> PlanRevision:
    request = _requests.setdefault(id(session), PlanRequest())
    return request.load_plan(session.run, "", build_argument_facts(vars(args)))


def find_rollout_file(entry: PlanEntry) -> tuple[PinnedArtifact, str]:
    """Returns the artifact with the rollout, and its file. Raises NotReplayableError."""
    pairs = [(artifact, name) for artifact in entry.artifacts for name in artifact.files]
    pairs = [(artifact, name) for artifact, name in pairs if PurePosixPath(name).suffix == ".pt"]
    if len(pairs) != 1:
        raise NotReplayableError(f"the pin has {len(pairs)} rollout files of slime, one is needed")
    return pairs[0]


def find_selected_samples(entry: PlanEntry) -> list[int]:
    """Returns the indices of the selected samples.

    Raises NotReplayableError if they are not all known, or if all samples are selected.
    """
    source, name = find_rollout_file(entry)
    if unplaced := int(entry.source.get("unplaced", entry.source.get("flagged")) or 0):
        reason = f"{entry.selected_word} samples can't be found in its file, so they can't be excluded"
        raise NotReplayableError(f"{unplaced} of its {reason}")
    if source.is_fully_selected:
        raise NotReplayableError(f"all its samples are {entry.selected_word}")
    return list(source.selected.get(name, ()))


def load_pinned_samples(entry: PlanEntry, selected: Collection[int] = ()) -> list[Any]:
    """Returns the samples of a pin's file; `selected` samples get no weight.

    slime zeroes their loss masks, and still counts them in the rewards of their group (`ray/rollout.py:680`). Raises
    NotReplayableError, SafePickleError, DownloadError, ServerUnreachableError, OSError.
    """
    with download_pinned_file(entry, *find_rollout_file(entry)) as path:
        rows = read_rollout_samples(path)
    from slime.utils.types import Sample

    for index in selected:
        rows[index]["remove_sample"] = True
    return [Sample.from_dict(row) for row in rows]


def read_rollout_samples(path: Path) -> list[dict[str, Any]]:
    """Returns the samples of slime's file as plain values. Raises NotReplayableError, SafePickleError, OSError."""
    converter = RowConverter()
    with open_torch_dict(path) as saved:
        samples = saved.get("samples")
        if not isinstance(samples, list) or not samples:
            raise NotReplayableError("its file has no samples")
        return [check_sample(converter.plain(sample), index) for index, sample in enumerate(samples)]


def check_sample(row: Any, index: int) -> dict[str, Any]:
    """Returns the row. Raises NotReplayableError if slime can't train on it or a value can't be rebuilt."""
    if not isinstance(row, dict):
        raise NotReplayableError(f"its sample {index} is not a dict")
    if missing := [name for name in REQUIRED_KEYS if row.get(name) is None]:
        raise NotReplayableError(f"its sample {index} has no {', '.join(missing)}")
    if tensors := [name for name in UNSUPPORTED_KEYS if row.get(name) is not None]:
        raise NotReplayableError(f"its samples have {', '.join(tensors)}, which can't be rebuilt")
    if unreadable := find_unreadable(row):
        raise NotReplayableError(f"its sample {index} has {unreadable}, which can't be rebuilt")
    return row


def check_top_p_tokens(args: Any, samples: Sequence[Any]) -> None:
    """Raises NotReplayableError if slime's conversion of the samples would fail: with top-p it needs its tokens.

    An older slime, whose samples have no such fields, needs none, and a custom conversion may need none.
    """
    top_p = getattr(args, "rollout_top_p", 1.0)
    if top_p == 1.0 or getattr(args, CONVERT_ARGUMENT, None) or getattr(args, "debug_rollout_only", False):
        return
    known = [name for name in TOP_P_KEYS if hasattr(type(samples[0]), name)]
    missing = ", ".join(name for name in known if any(getattr(sample, name) is None for sample in samples))
    if missing:
        raise NotReplayableError(f"its samples have no {missing}, which --rollout-top-p {top_p} of this run needs")


def find_unreadable(value: Any) -> str:
    """Returns the first value that the safe reader did not convert; "" if there is none."""
    if isinstance(value, Unreadable):
        return str(value)
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)) or (value and isinstance(value[0], (int, float))):
        return ""
    return next((unreadable for item in value if (unreadable := find_unreadable(item))), "")


@catch_errors
def skip_prompts(args: Any, data_source: Any) -> None:
    """Skips the prompts of the replayed rollout: the next rollout must get the same prompts as in the pinned run.

    slime takes `over_sampling_batch_size` prompts for a rollout, and more if its filter rejects groups. Groups that it
    has begun (`--partial-rollout`) go back.
    """
    drawn = data_source.get_samples(getattr(args, "over_sampling_batch_size", None) or args.rollout_batch_size)
    begun = [group for group in drawn or () if any(getattr(sample, "tokens", None) for sample in group)]
    if begun:
        data_source.add_samples(begun)


def build_output(samples: Sequence[Any]) -> Any:
    """Returns the samples as a flat list, like slime's loader of rollouts."""
    from slime.rollout.base_types import RolloutFnTrainOutput

    return RolloutFnTrainOutput(samples=list(samples))
