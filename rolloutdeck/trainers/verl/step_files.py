"""Folders in which verl stores complete steps to replay: where they are, which step each has, and its facts.

Source: verl 0.9.1 (`utils/skip/rollout_skip.py`), 0.8.0 (its rollout skip is called V2 there) and 0.7.1 (the single
file). All are in
`{dump_dir}/{experiment}_{project}/GBS{gbs}_N{n}_in{prompt}_out{response}/`:

{step}/gen_batch.dp, meta.json              V0 and fully async; verl writes meta.json last and never reads it
{step}/{inner}/tq_batch.pt, meta.json       V1; a step is complete if every inner folder is
genstep_{count}/{new,gen}_batch.dp, meta.json    verl 0.8, which counts calls, validation too; new_batch has the step
{experiment}_{project}_GBS{gbs}__N{n}       verl up to 0.7: one file, replayed at every step

Fully async writes the layout of V0 with one prompt per folder, and its steps count prompts. Its tree is named GBS1 and
its batches have `metrics`; those of V0, whose tree can be named GBS1 too, have `timing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolloutdeck.trainer_api import LoadableStep, StepLocation
from rolloutdeck.trainers.common import mark_pulled, walk_folders

GEN, TQ, NEW, META = "gen_batch.dp", "tq_batch.pt", "new_batch.dp", "meta.json"

_TREE = re.compile(r"GBS(\d{1,9})_N(\d{1,9})_in(\d{1,9})_out(\d{1,9})\Z")
_SINGLE = re.compile(r".*_GBS(\d{1,9})__N(\d{1,9})\Z", re.S)
_STEP = re.compile(r"(?:0|[1-9]\d{0,17})\Z")  # verl parses "07" as step 7 and then does not find it
_GENSTEP = re.compile(r"genstep_\d{6,18}\Z")

INCOMPLETE_STEPS = "unfinished rollout-skip steps (a file is missing or empty)"
DUMPS_WITHOUT_STEP = "rollout-skip dumps in a folder that is not a step"
VALIDATION_BATCHES = "validation batches among rollout-skip dumps"
UNREADABLE_DUMPS = "rollout-skip dumps whose step can't be read"
PULLED_DUMPS = "rollout-skip dumps that `rolloutdeck pull` wrote"


def find_steps(root: Path) -> list[StepLocation]:
    """Returns every folder or file below `root` that looks like a step, complete or not. Ignores what can't be read."""
    if root.is_file():
        return [_build_single_location(root)] if _SINGLE.match(root.name) else []
    locations: list[StepLocation] = []
    inner: dict[Path, set[str]] = {}
    for path, names in walk_folders(root):
        if TQ in names or (META in names and _is_inner(path)):
            inner.setdefault(path.parent, set()).add(path.name)
        elif GEN in names or NEW in names or (META in names and _TREE.match(path.parent.name)):
            locations.append(_build_gen_location(path))
        locations += [_build_single_location(path / name) for name in names if _SINGLE.match(name)]
    locations += _iter_tq_locations(inner)
    return mark_pulled(locations, PULLED_DUMPS)


def read_step(location: StepLocation) -> LoadableStep | str:
    """Returns the step read from its batch, or the reason why it is skipped."""
    shape = parse_shape(location.path)
    if location.layout == "tq":
        batches = [location.path / file for file in location.files if file.endswith(TQ)]
        facts = _build_facts(shape, batches, "rollout_tq")
        facts["parameter_sync_step"] = len(location.files) // 2
        return _build_step(location, "rollout_tq", int(location.path.name), facts)
    if location.layout == "v2":
        return _read_v2_step(location, shape)
    if location.layout == "single":
        facts = {**_build_facts(shape, [location.path], "rollout"), "format": "single_file"}
        return _build_step(replace(location, path=location.path.parent), "rollout", 0, facts)
    role = "async_rollout" if shape.get("gbs") == 1 and _is_async(location.path / GEN) else "rollout"
    return _build_step(location, role, int(location.path.name), _build_facts(shape, [location.path / GEN], role))


def _build_step(location: StepLocation, role: str, step: int, facts: dict[str, Any]) -> LoadableStep:
    kind = "feed_index" if role == "async_rollout" else "global_step"
    return LoadableStep(location.path, role, step, kind, location.files, location.layout, facts)


def _read_v2_step(location: StepLocation, shape: Mapping[str, int]) -> LoadableStep | str:
    meta = _read_meta(location.path / NEW)
    if meta.get("validate") is True:
        return VALIDATION_BATCHES
    step = meta.get("global_steps")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        return UNREADABLE_DUMPS
    return _build_step(location, "rollout", step, _build_facts(shape, [location.path / GEN], "rollout"))


def parse_shape(path: Path) -> dict[str, int]:
    """Returns `gbs n prompt response` from the names of `path` and the folders above it; {} if none has them."""
    if match := _SINGLE.match(path.name):
        return {"gbs": int(match.group(1)), "n": int(match.group(2))}
    for part in reversed(path.parts):
        if match := _TREE.match(part):
            return dict(zip(("gbs", "n", "prompt", "response"), map(int, match.groups()), strict=True))
    return {}


def _build_single_location(path: Path) -> StepLocation:
    return StepLocation("verl", path, "single", (path.name,), "" if _are_non_empty([path]) else INCOMPLETE_STEPS)


def _build_gen_location(folder: Path) -> StepLocation:
    is_verl_08 = bool(_GENSTEP.match(folder.name))
    files = (GEN, META, NEW) if is_verl_08 else (GEN, META)
    reason = "" if _are_non_empty(folder / file for file in files) else INCOMPLETE_STEPS
    if not is_verl_08 and not _STEP.match(folder.name):
        reason = DUMPS_WITHOUT_STEP
    return StepLocation("verl", folder, "v2" if is_verl_08 else "skip", files, reason)


def _is_inner(folder: Path) -> bool:
    """Returns whether the folder is {step}/{inner}, with or without its batch."""
    return bool(_STEP.match(folder.name) and _STEP.match(folder.parent.name) and _TREE.match(folder.parent.parent.name))


def _iter_tq_locations(inner: Mapping[Path, set[str]]) -> Iterator[StepLocation]:
    """Yields the steps of V1. Each step has as many inner folders as the others of its tree."""
    counts_by_tree: dict[Path, list[int]] = {}
    for step, names in inner.items():
        counts_by_tree.setdefault(step.parent, []).append(len(names))
    for step, names in inner.items():
        sorted_names = sorted(names, key=lambda name: (len(name), name))
        files = tuple(f"{name}/{file}" for name in sorted_names for file in (META, TQ))
        if not _STEP.match(step.name) or not all(_STEP.match(name) for name in names):
            yield StepLocation("verl", step, "tq", files, DUMPS_WITHOUT_STEP)
            continue
        counts = counts_by_tree[step.parent]
        has_all_folders = {int(name) for name in names} == set(range(max(counts)))
        reason = "" if has_all_folders and _are_non_empty(step / file for file in files) else INCOMPLETE_STEPS
        # The async trainers, which write several inner folders, are named GBS1.
        may_grow = len(counts) == 1 and parse_shape(step).get("gbs", 1) == 1
        yield StepLocation("verl", step, "tq", files, reason, may_grow)


def _are_non_empty(paths: Iterable[Path]) -> bool:
    try:
        return all(path.is_file() and path.stat().st_size for path in paths)
    except OSError:
        return False


def _is_async(batch: Path) -> bool:
    meta = _read_meta(batch)
    return "metrics" in meta or "timing" not in meta


def _read_meta(path: Path) -> dict[str, Any]:
    """Returns `meta_info` of a batch; {} if it can't be read."""
    try:
        from rolloutdeck.safe_pickle.batches import open_batch

        with open_batch(path) as batch:
            return dict(batch.meta)
    except Exception:  # numpy is missing, or the file has another format: the values stay unknown
        return {}


def _build_facts(shape: Mapping[str, int], batches: Iterable[Path], role: str) -> dict[str, Any]:
    """Returns the facts of `compatibility` that the path and the batches show."""
    facts: dict[str, Any] = {"role": role, "parameter_sync_step": 1}
    fact_names = {"n": "samples_per_prompt", "prompt": "max_prompt_length", "response": "max_response_length"}
    facts |= {fact: shape[name] for name, fact in fact_names.items() if name in shape}
    if role != "rollout_tq" and "gbs" in shape:  # V1 is named GBS1 whenever it may refill its batch
        facts["prompts"] = shape["gbs"]
    return facts | _count_rows(batches)


def _count_rows(batches: Iterable[Path]) -> dict[str, Any]:
    """Returns the rows and prompts of all batches together, and the format of the files; {} if one can't be read."""
    rows = 0
    uids: set[str] = set()
    kinds: set[tuple[str, str]] = set()
    try:
        from rolloutdeck.safe_pickle.batches import open_batch

        for path in batches:
            with open_batch(path) as batch:
                rows += batch.rows
                uids.update(key.rsplit("_", 2)[0] for key in batch.keys)
                kinds.add((batch.format, batch.serialisation))
    except Exception:
        return {}
    facts: dict[str, Any] = {"rows": rows, **({"prompts": len(uids)} if uids else {})}
    if len(kinds) == 1:
        facts["format"], facts["serialisation"] = kinds.pop()
    return facts
