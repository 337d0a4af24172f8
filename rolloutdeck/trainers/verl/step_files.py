"""The folders in which verl keeps whole steps to replay: where they are, which step each is of, what it fits.

Read from verl 0.9.1 (`utils/skip/rollout_skip.py`), 0.8.0 (RolloutSkip V2) and 0.7.1 (the single file). All lie in
`{dump_dir}/{experiment}_{project}/GBS{gbs}_N{n}_in{prompt}_out{response}/`:

{step}/gen_batch.dp, meta.json              V0 and fully async; verl writes meta.json last and never reads it
{step}/{inner}/tq_batch.pt, meta.json       V1; a step is whole when every inner folder is
genstep_{count}/{new,gen}_batch.dp, meta.json    V2, which counts calls, validation too; new_batch has the step
{experiment}_{project}_GBS{gbs}__N{n}       V1 of the skip feature: one file, replayed at every step

Fully async writes the layout of V0 with a prompt per folder, and its steps count prompts. Its tree says GBS1 and its
batches carry `metrics` where those of V0, which can have GBS1 too, carry `timing`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolloutdeck.trainer_api import LoadableStep, StepLocation

GEN, TQ, NEW, META = "gen_batch.dp", "tq_batch.pt", "new_batch.dp", "meta.json"
PULL_MANIFEST_NAME = ".rolloutdeck-pull.json"  # `rolloutdeck pull` put these there: they are another run's

_TREE = re.compile(r"GBS(\d{1,9})_N(\d{1,9})_in(\d{1,9})_out(\d{1,9})\Z")
_SINGLE = re.compile(r".*_GBS(\d{1,9})__N(\d{1,9})\Z", re.S)
_STEP = re.compile(r"(?:0|[1-9]\d{0,17})\Z")  # verl takes "07" for step 7 and then does not find it
_GENSTEP = re.compile(r"genstep_\d{6,18}\Z")

INCOMPLETE_STEPS = "unfinished rollout-skip steps (a file is missing or empty)"
DUMPS_WITHOUT_STEP = "rollout-skip dumps in a folder that is no step"
VALIDATION_BATCHES = "validation batches among rollout-skip dumps"
UNREADABLE_DUMPS = "rollout-skip dumps whose step can't be read"
PULLED_DUMPS = "rollout-skip dumps that `rolloutdeck pull` put there"


def find_steps(root: Path) -> list[StepLocation]:
    """Every place below `root` that looks like a step, whole or not. Never raises for what can't be read."""
    if root.is_file():
        return [_single(root)] if _SINGLE.match(root.name) else []
    found: list[StepLocation] = []
    inner: dict[Path, set[str]] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = Path(folder)
        if TQ in names or (META in names and _is_inner(here)):
            inner.setdefault(here.parent, set()).add(here.name)
        elif GEN in names or NEW in names or (META in names and _TREE.match(here.parent.name)):
            found.append(_gen_spot(here))
        found += [_single(here / name) for name in sorted(names) if _SINGLE.match(name)]
    found += _tq_spots(inner)
    pulled = {tree: _is_pulled(tree) for tree in {spot.path.parent for spot in found}}
    return [replace(spot, reason=PULLED_DUMPS) if pulled[spot.path.parent] else spot for spot in found]


def read_step(spot: StepLocation) -> LoadableStep | str:
    """What this step is, read from its batch; else the reason why it is left out."""
    shape = shape_of(spot.path)
    if spot.layout == "tq":
        facts = _facts(shape, [spot.path / file for file in spot.files if file.endswith(TQ)], "rollout_tq")
        facts["parameter_sync_step"] = len(spot.files) // 2
        return _folder(spot, "rollout_tq", int(spot.path.name), facts)
    if spot.layout == "v2":
        return _genstep(spot, shape)
    if spot.layout == "single":
        facts = _facts(shape, [spot.path], "rollout")
        return _folder(replace(spot, path=spot.path.parent), "rollout", 0, {**facts, "format": "single_file"})
    role = "async_rollout" if shape.get("gbs") == 1 and _is_async(spot.path / GEN) else "rollout"
    return _folder(spot, role, int(spot.path.name), _facts(shape, [spot.path / GEN], role))


def _folder(spot: StepLocation, role: str, step: int, facts: dict[str, Any]) -> LoadableStep:
    kind = "feed_index" if role == "async_rollout" else "global_step"
    return LoadableStep(spot.path, role, step, kind, spot.files, spot.layout, facts)


def _genstep(spot: StepLocation, shape: Mapping[str, int]) -> LoadableStep | str:
    meta = _meta(spot.path / NEW)
    if meta.get("validate") is True:
        return VALIDATION_BATCHES
    step = meta.get("global_steps")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        return UNREADABLE_DUMPS
    return _folder(spot, "rollout", step, _facts(shape, [spot.path / GEN], "rollout"))


def shape_of(path: Path) -> dict[str, int]:
    """`gbs n prompt response` as the folders above `path`, or its own name, say them; {} where none does."""
    if match := _SINGLE.match(path.name):
        return {"gbs": int(match.group(1)), "n": int(match.group(2))}
    for part in reversed(path.parts):
        if match := _TREE.match(part):
            return dict(zip(("gbs", "n", "prompt", "response"), map(int, match.groups()), strict=True))
    return {}


def _single(path: Path) -> StepLocation:
    return StepLocation("verl", path, "single", (path.name,), "" if _sizes([path]) else INCOMPLETE_STEPS)


def _gen_spot(folder: Path) -> StepLocation:
    layout, files = ("v2", [GEN, META, NEW]) if _GENSTEP.match(folder.name) else ("skip", [GEN, META])
    if layout == "skip" and not _STEP.match(folder.name):
        return StepLocation("verl", folder, layout, tuple(files), DUMPS_WITHOUT_STEP)
    return StepLocation(
        "verl", folder, layout, tuple(files), "" if _sizes(folder / file for file in files) else INCOMPLETE_STEPS
    )


def _is_inner(folder: Path) -> bool:
    """A folder {step}/{inner}, whether or not its batch is there."""
    return bool(_STEP.match(folder.name) and _STEP.match(folder.parent.name) and _TREE.match(folder.parent.parent.name))


def _tq_spots(inner: Mapping[Path, set[str]]) -> Iterator[StepLocation]:
    """A step has as many inner folders as the others of its tree; the tree alone does not say how many."""
    most: dict[Path, int] = {}
    for step, names in inner.items():
        most[step.parent] = max(len(names), most.get(step.parent, 0))
    for step, names in inner.items():
        files = tuple(
            f"{name}/{file}" for name in sorted(names, key=lambda name: (len(name), name)) for file in (META, TQ)
        )
        if not _STEP.match(step.name) or not all(_STEP.match(name) for name in names):
            yield StepLocation("verl", step, "tq", files, DUMPS_WITHOUT_STEP)
            continue
        whole = {int(name) for name in names} == set(range(most[step.parent])) and _sizes(step / file for file in files)
        alone = not any(other.parent == step.parent and other != step for other in inner)
        may_grow = alone and shape_of(step).get("gbs", 1) == 1  # the async trainers, which write several, say GBS1
        yield StepLocation("verl", step, "tq", files, "" if whole else INCOMPLETE_STEPS, may_grow)


def _sizes(paths: Iterable[Path]) -> bool:
    """Whether all are files with something in them."""
    try:
        return all(path.is_file() and path.stat().st_size for path in paths)
    except OSError:
        return False


def _is_pulled(tree: Path) -> bool:
    """`pull` leaves its list in the folder that a run reads from, a few levels above the steps."""
    return any((above / PULL_MANIFEST_NAME).is_file() for above in [tree, *list(tree.parents)[:5]])


def _is_async(batch: Path) -> bool:
    meta = _meta(batch)
    return "metrics" in meta or "timing" not in meta


def _meta(path: Path) -> dict[str, Any]:
    """`meta_info` of a batch; {} where it can't be read."""
    try:
        from rolloutdeck.safe_pickle.batches import open_batch

        with open_batch(path) as batch:
            return dict(batch.meta)
    except Exception:  # numpy is not there, or the file is none of ours: what is unknown is said to be
        return {}


def _facts(shape: Mapping[str, int], batches: Iterable[Path], role: str) -> dict[str, Any]:
    """Facts of `compat.FACTS` as far as the path and the batches tell them."""
    facts: dict[str, Any] = {"role": role, "parameter_sync_step": 1}
    known = {"n": "samples_per_prompt", "prompt": "max_prompt_length", "response": "max_response_length"}
    facts |= {fact: shape[name] for name, fact in known.items() if name in shape}
    if role != "rollout_tq" and "gbs" in shape:  # V1 says GBS1 wherever it may have to refill its batch
        facts["prompts"] = shape["gbs"]
    return facts | _counted(batches)


def _counted(batches: Iterable[Path]) -> dict[str, Any]:
    """Rows and prompts of all batches together, and what the bytes are; {} where one can't be read."""
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
    found: dict[str, Any] = {"rows": rows, **({"prompts": len(uids)} if uids else {})}
    if len(kinds) == 1:
        found["format"], found["serialisation"] = kinds.pop()
    return found
