"""The files CURE writes, none of which says its step: steps are counted by what it appends to its results.

Read from Gen-Verse/CURE 69fe174: sample.py begins a step in `results/results-rl-{model}-{data set}.txt` with a line
"code response length: …", then it, execute.py and reward.py overwrite the files in `temp_data`. A folder that somebody
named `step3` says it, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rolloutdeck.trainer_api import FileHead, FileKind, FunctionReference, Trainer

_COPY = re.compile(r"(?:step|iter)[_-]?(\d{1,9})\Z")
OUTPUTS_FILE = re.compile(r"outputs-rl-(?P<run>.+)\.json\Z")
_BEGUN = b"code response length:"
_EVALUATED = b"code acc (average proportion"  # eval.py's line in `evaluation/results/results-eval-*.txt`
NEXT_STEP_SECONDS = 30.0  # seconds by which results are newer than data when the next step has begun; a copy takes less


def find_cure_step(path: Path) -> int:
    """The step of a folder's name, else counted from 0."""
    named = _named(path)
    return max(0, _begun(path, path.parent.parent / "results") - 1) if named is None else named


def eval_step_of(path: Path) -> int:
    """The step of a folder's name, else how many steps came before this evaluation, as run.py counts; where none is
    trained beside it, how many evaluations did."""
    if (named := _named(path)) is not None:
        return named
    trained = _begun(path, path.parent.parent.parent / "optimization" / "results")
    return trained or max(0, _lines(path.parent.parent / "results", "results-eval-*.txt", _EVALUATED) - 1)


def results_step_of(path: Path) -> int:
    """The first step that these results of a training tell of: how many those of the models before them have. Their
    folder's name says nothing, as a copy of a later step has the results of the earlier ones, too."""
    steps = 0
    for results in sorted(path.parent.glob("results-rl-*.txt"), key=_age):
        if results == path:
            break
        with suppress(OSError):
            steps += results.read_bytes().count(_BEGUN)
    return steps


def _age(results: Path) -> tuple[bool, float, str]:
    """Orders results by when their models were sampled from: the base first, then what was trained of it."""
    try:
        changed = results.stat().st_mtime
    except OSError:
        changed = 0.0
    return "ckpt." in results.name, changed, results.name


def _is_results(name: str, head: FileHead) -> bool:
    return _BEGUN in head.start or _EVALUATED in head.start


def _named(path: Path) -> int | None:
    found = (_COPY.match(folder.name) for folder in path.parents)
    return next((int(named.group(1)) for named in found if named), None)


def _lines(folder: Path, pattern: str, line: bytes) -> int:
    count = 0
    for path in folder.glob(pattern):
        with suppress(OSError):
            count += path.read_bytes().count(line)
    return count


def _begun(path: Path, folder: Path) -> int:
    """How many steps had begun when this file was written: those of the models before its own count, too."""
    found = []
    for results in folder.glob("results-rl-*.txt"):
        try:
            found.append((results.stat().st_mtime, results.name, results.read_bytes().count(_BEGUN)))
            written = path.stat().st_mtime
        except OSError:
            continue
    if not found:
        return 0
    found.sort()
    own = OUTPUTS_FILE.match(path.name)
    if own and own["run"] not in found[-1][1]:  # a model that is not sampled from any more
        return sum(count for at, name, count in found if at <= _last(found, own["run"]))
    return sum(count for _, _, count in found) - (found[-1][0] - written > NEXT_STEP_SECONDS)


def _last(found: Sequence[tuple[float, str, int]], run: str) -> float:
    return max((at for at, name, _ in found if run in name), default=0.0)


def _is_list(name: str, head: FileHead) -> bool:
    return head.start.lstrip().startswith(b"[")


REQUIRED_SETTINGS = ("pretrained_model=MODEL", "dataset=NAME")
KINDS = (
    FileKind(
        "cure-outputs", "programs and tests of a step", "outputs-rl-*.json", "whole", _is_list, step=find_cure_step,
        split=lambda path: "train", step_kind="iteration",
    ),
    FileKind(
        "cure-outputs", "programs and tests of an evaluation", "outputs-eval-*.json", "whole", _is_list,
        step=eval_step_of, split=lambda path: "eval", step_kind="iteration",
    ),
    FileKind(
        "cure-data", "what a step trained on", "rl_*data.json", "whole", _is_list, step=find_cure_step,
        split=lambda path: "train", step_kind="iteration", joins=True,
    ),
    FileKind(
        "cure-results", "figures of a training", "results-rl-*.txt", "whole", _is_results, step=results_step_of,
        step_kind="iteration", holds="metrics",
    ),
    FileKind(
        "cure-results", "figures of evaluations", "results-eval-*.txt", "whole", _is_results, step=eval_step_of,
        step_kind="iteration", holds="metrics",
    ),
)  # fmt: skip


def guess_split(heads: Sequence[FileHead], steps: Sequence[int]) -> tuple[str, str]:
    """Never asked: each file's name says it."""
    return "train", "CURE names its evaluations"


TRAINER = Trainer(
    name="cure",
    kinds=KINDS,
    guess_split=guess_split,
    loads=("cure",),
    instructions="CURE has no setting that keeps a step: start this in its folder, before run.py:",
    first_step=0,
    masks_flagged=True,  # without a flagged answer, the others of its prompt stay
    required_settings=REQUIRED_SETTINGS,
    check_settings=FunctionReference("rolloutdeck.trainers.cure.settings_check:check_settings"),
    read_requirements=FunctionReference("rolloutdeck.trainers.cure.layout:read_requirements"),
    guess_settings=FunctionReference("rolloutdeck.trainers.cure.layout:guess_settings"),
    recommended_lines=FunctionReference("rolloutdeck.trainers.cure.settings_check:recommended_lines"),
    keep_lines=FunctionReference("rolloutdeck.trainers.cure.settings_check:store_lines"),
    find_steps=FunctionReference("rolloutdeck.trainers.cure.step_files:find_steps"),
    read_step=FunctionReference("rolloutdeck.trainers.cure.step_files:read_step"),
)
