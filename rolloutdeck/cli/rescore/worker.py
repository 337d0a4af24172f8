"""The process that calls the user's function: `python -m rolloutdeck.cli.rescore.worker FILE.py:NAME`.

It reads one JSON list of samples per line and writes one JSON object per result. What the function prints goes to
standard error. It ends with its parent.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

from rolloutdeck.cli.rescore.limits import clean_text, is_storable
from rolloutdeck.protocol import (
    ACCURACY_PART,
    MAX_RESULT_NUMBER,
    MAX_RESULT_PART_NAME_CHARS,
    MAX_RESULT_PART_TEXT_CHARS,
    MAX_RESULT_PARTS,
)

ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
BATCH_ARGUMENTS = tuple(f"{name}s" for name in ARGUMENTS)
SIGNATURE = f"({', '.join(ARGUMENTS)}) or ({', '.join(BATCH_ARGUMENTS)})"
MAX_ERROR_CHARS = 400
NO_TEXT = "only token ids of the response were recorded; upload the run's tokenizer, then use --retry"
PACKAGE_FOLDERS = frozenset(("site-packages", "dist-packages"))


class FunctionError(Exception):
    """The function cannot be loaded or called. The message says why."""


@dataclass(frozen=True)
class RewardFunction:
    """`accepted` are the arguments that it takes; `digest` is the hash of its name, its file and the
    modules that it imports from its folder."""

    call: Callable[..., Any]
    name: str
    digest: str
    accepted: tuple[str, ...]
    is_batch: bool


def load_function(text: str) -> RewardFunction:
    """Raises FunctionError, and whatever the user's module raises."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise FunctionError(f"--fn {text} is not FILE.py:NAME or package.module:NAME.")
    known_modules = set(sys.modules)
    module, path = load_file(Path(place)) if place.endswith(".py") else load_module(place)
    function = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        known = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        raise FunctionError(f"{place} has no function {name}. It has: {', '.join(known) or 'none'}.")
    shown = f"{path.name}:{name}" if place.endswith(".py") else text
    digest = compute_digest(path, name, set(sys.modules) - known_modules)
    return RewardFunction(function, shown, digest, *read_arguments(function))


def compute_digest(path: Path, name: str, imported: Iterable[str]) -> str:
    """Returns the hash of the function's version. Modules that it imports from its folder are a part of it, installed
    packages are not."""
    content = path.read_bytes() + b"\0" + name.encode()
    folder = path.resolve().parent
    files = {Path(getattr(sys.modules[module], "__file__", None) or "").resolve() for module in imported}
    for file in sorted(files - {path.resolve()}):
        is_own = file.is_relative_to(folder) and not PACKAGE_FOLDERS & set(file.parts)
        if is_own and file.suffix == ".py" and file.is_file():
            content += b"\0" + str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes()
    return hashlib.sha256(content).hexdigest()


def load_file(path: Path) -> tuple[Any, Path]:
    if not path.is_file():
        raise FunctionError(f"{path} is no file.")
    sys.path.insert(0, str(path.resolve().parent))  # as if Python ran it: for imports of its neighbours
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FunctionError(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module, path


def load_module(name: str) -> tuple[Any, Path]:
    sys.path.insert(0, str(Path.cwd()))
    module = importlib.import_module(name)
    source = inspect.getsourcefile(module)
    if source is None:
        raise FunctionError(f"The source of {name} is not available, so its version is unknown.")
    return module, Path(source)


def read_arguments(function: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """Returns the arguments that the function takes, and whether it takes lists. Raises FunctionError."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    names = [each.name for each in parameters]
    is_batch = "solution_strs" in names
    known = BATCH_ARGUMENTS if is_batch else ARGUMENTS
    accepted = tuple(name for name in known if takes_all or name in names)
    required = [
        each.name
        for each in parameters
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY, each.POSITIONAL_ONLY)
    ]
    unknown = [name for name in required if name not in known]
    if unknown or not accepted:
        raise FunctionError(f"The function must take {SIGNATURE}. It takes ({', '.join(names)}).")
    return accepted, is_batch


def build_arguments(function: RewardFunction, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if function.is_batch:
        return {name: [sample[name[:-1]] for sample in samples] for name in function.accepted}
    return {name: samples[0][name] for name in function.accepted}


def score_samples(function: RewardFunction, samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a result for each sample. One without a text is an error, and not passed to the function, if the
    function takes the text."""
    takes_text = any(name in function.accepted for name in ("solution_str", "solution_strs"))
    is_scored = [not takes_text or sample["solution_str"] is not None for sample in samples]
    results = iter(call_function(function, list(compress(samples, is_scored))) if any(is_scored) else ())
    return [next(results) if scored else {"error": NO_TEXT} for scored in is_scored]


def call_function(function: RewardFunction, samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a result for each sample. An exception of the function is the error of the result."""
    try:
        value = function.call(**build_arguments(function, samples))
        if inspect.isawaitable(value):
            import asyncio  # most functions are not async, and each process would import it

            value = asyncio.run(wait_for(value))
        if not function.is_batch:
            return [read_result(value)]
        values = list(value)
        if len(values) != len(samples):
            return [{"error": f"it returned {len(values)} results for {len(samples)} samples"}] * len(samples)
        return [read_result(each) for each in values]
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # also SystemExit of the user's code
        return [{"error": describe_error(error)}] * len(samples)


async def wait_for(value: Any) -> Any:
    return await value


def describe_error(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[: MAX_ERROR_CHARS - len(where)].rstrip(": ") + where


def read_result(value: Any) -> dict[str, Any]:
    """Returns {value, parts} of a number, or of a dict with `score`; else {error}."""
    parts: dict[str, Any] = {}
    if isinstance(value, dict):
        if "score" not in value:
            return {"error": f"it returned a dict without `score`: {', '.join(map(str, value))[:200]}"}
        parts = read_parts(value)
        value = value["score"]
    number = read_number(value)
    if number is None:
        return {"error": f"it returned {describe_value(value)}, which is no finite number"}
    if not is_storable(number):
        return {"error": f"it returned {describe_value(value)}, which is not below {MAX_RESULT_NUMBER:g}"}
    return {"value": number, "parts": parts} if parts else {"value": number}


def read_number(value: Any) -> float | None:
    """Returns a finite number, also of numpy and torch scalars."""
    if value is None or isinstance(value, str | bytes | list | tuple | dict):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def read_parts(values: dict[Any, Any]) -> dict[str, Any]:
    """Returns the numbers and texts next to the score, as far as the server keeps them: first of all `acc`."""
    parts: dict[str, Any] = {}
    for name, value in sorted(values.items(), key=lambda pair: pair[0] != ACCURACY_PART):
        part = read_part(value)
        if name != "score" and part is not None and len(parts) < MAX_RESULT_PARTS:
            parts[clean_text(str(name), MAX_RESULT_PART_NAME_CHARS)] = part
    return parts


def read_part(value: Any) -> float | str | None:
    """Returns a finite number, or the start of a text; None for what the server does not keep."""
    if isinstance(value, str):
        return clean_text(value, MAX_RESULT_PART_TEXT_CHARS) or None
    number = read_number(value)
    return number if number is not None and is_storable(number) else None


def describe_value(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"[:120] if value is not None else "None"


def end_with_parent() -> None:
    """Kills this process and its children when the parent is gone, also during a call that never ends."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main(text: str) -> None:
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    tasks = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(2, 1)
    with open(os.devnull) as nothing:  # noqa: PTH123 - the function cannot read the tasks
        os.dup2(nothing.fileno(), 0)
    end_with_parent()

    def send(message: dict[str, Any]) -> None:
        results.write(json.dumps(message) + "\n")
        results.flush()

    try:
        function = load_function(text)
    except FunctionError as error:
        return send({"failed": str(error)})
    except BaseException as error:
        traceback.print_exc()
        return send({"failed": f"{text} cannot be loaded: {describe_error(error)}."})
    send({"name": function.name, "digest": function.digest, "batch": function.is_batch})
    for line in tasks:
        samples = json.loads(line)
        if function.is_batch:
            send({"results": score_samples(function, samples)})
        else:
            for sample in samples:
                send({"results": score_samples(function, [sample])})


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main(sys.argv[1])
