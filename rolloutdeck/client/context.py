"""What a process runs: command, code version, host, Python, versions of packages, GPUs. Imports none of them.

Everything is read from files, except the number of changed files, which `git` counts within a time limit, and GPUs
where the driver has no files. A part that cannot be read is left out.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rolloutdeck.client.process_identity import clean_name, get_host_name

GIT_SECONDS = 3.0  # for each call of git
GPU_SECONDS = 5.0
MAX_ARGUMENTS = 2000
MAX_COMMAND_CHARS = 64 << 10
MAX_PACKAGES = 1000
MAX_PATCH_BYTES = 256 << 10
OFF_VALUES = ("0", "off", "no", "false", "none")
RAY_WORKER = "default_worker.py"  # its command is Ray's, not the user's
_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9][\w.]*)-(?P<version>[0-9][\w.!+]*)(?:-[\w.]+)?\.(?:dist-info|egg-info)\Z")
_REFERENCE = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")


def should_collect(setting: str, requested: bool | None, environ: Mapping[str, str]) -> bool:
    """Whether this process reports its context: not if it is switched off, and one process of each host."""
    is_on = setting.lower() not in OFF_VALUES if requested is None else requested
    return is_on and environ.get("LOCAL_RANK", "0") == "0"


def collect_context(*, with_patch: bool = False) -> dict[str, Any]:
    """Returns the parts that can be read. Takes up to some seconds, so it runs in a thread of its own."""
    parts: tuple[Callable[[], dict[str, Any]], ...] = (
        _describe_process,
        lambda: _describe_code(with_patch),
        lambda: {"packages": list_packages(sys.path)},
        _describe_gpus,
    )
    context: dict[str, Any] = {}
    for part in parts:
        try:
            context |= part()
        except Exception:  # an unreadable part must not cost the others
            continue
    return context


def _describe_process() -> dict[str, Any]:
    system = os.uname()
    return {
        "host": get_host_name(),
        "folder": clean_name(Path.cwd().name, 200),
        "python": ".".join(map(str, sys.version_info[:3])),
        "platform": clean_name(f"{system.sysname} {system.release} {system.machine}", 200),
        "cpus": os.cpu_count() or 0,
        **({"command": command} if (command := get_command()) else {}),
    }


def get_command() -> list[str]:
    """Returns the arguments of this process; [] if they are those of a launcher."""
    arguments = list(getattr(sys, "orig_argv", None) or sys.argv)
    if any(argument.endswith(RAY_WORKER) for argument in arguments[:3]):
        return []
    result: list[str] = []
    size = 0
    for argument in arguments[:MAX_ARGUMENTS]:
        text = argument.encode("utf-8", "replace").decode()
        size += len(text)
        if size > MAX_COMMAND_CHARS:
            return [*result, "…"]
        result.append(text)
    return result


def list_packages(folders: Iterable[str]) -> dict[str, str]:
    """Returns {name: version} from the names of the metadata folders.

    `importlib.metadata` opens a file of each package, and its import takes longer than that of this client.
    """
    packages: dict[str, str] = {}
    for folder in folders:
        try:
            names = sorted(path.name for path in Path(folder or ".").iterdir())
        except OSError:
            continue
        for name in names:
            if match := _PACKAGE.match(name):
                packages.setdefault(match["name"].replace("_", "-").lower(), match["version"])
    return dict(sorted(packages.items())[:MAX_PACKAGES])


# --- code -------------------------------------------------------------------------------------------------------------


def _describe_code(with_patch: bool) -> dict[str, Any]:
    """Returns `git` of the working folder, else of the folder of the program."""
    folders = [Path.cwd(), *([Path(sys.argv[0]).resolve().parent] if sys.argv and sys.argv[0] else [])]
    for folder in folders:
        if (root := find_repository(folder)) is not None:
            git = read_head(root)
            changed = _run(
                ["git", *_QUIET, "-C", str(root), "status", "--porcelain", "--untracked-files=no"], GIT_SECONDS
            )
            if changed is not None:
                git["changed"] = len(changed.splitlines())
            if with_patch and git.get("changed"):
                patch = _run(
                    ["git", *_QUIET, "-C", str(root), "diff", "--no-ext-diff", "--no-textconv", "HEAD"], GIT_SECONDS
                )
                git["patch"] = (patch or "")[:MAX_PATCH_BYTES]
            return {"git": git}
    return {}


# Nothing that the repository configures is run.
_QUIET = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-optional-locks")


def find_repository(folder: Path) -> Path | None:
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), None)


def read_head(root: Path) -> dict[str, Any]:
    """Returns `commit` and `branch` of a repository or worktree, without git."""
    git = root / ".git"
    if git.is_file():  # a worktree or submodule
        git = (root / git.read_text("utf-8").partition("gitdir:")[2].strip()).resolve()
    head = (git / "HEAD").read_text("utf-8").strip()
    if not head.startswith("ref:"):
        return {"commit": head} if _REFERENCE.match(head) else {}
    reference = head.partition("ref:")[2].strip()
    common = git / "commondir"
    shared = (git / common.read_text("utf-8").strip()).resolve() if common.exists() else git
    commit = next((found for folder in (git, shared) if (found := _read_reference(folder, reference))), "")
    branch = clean_name(reference.removeprefix("refs/heads/"), 200)
    return {"branch": branch, **({"commit": commit} if commit else {})}


def _read_reference(folder: Path, reference: str) -> str:
    path, packed = folder / reference, folder / "packed-refs"
    if path.is_file():
        commit = path.read_text("utf-8").strip()
        return commit if _REFERENCE.match(commit) else ""
    lines = packed.read_text("utf-8").splitlines() if packed.is_file() else []
    return next((line[: -len(reference) - 1] for line in lines if line.endswith(f" {reference}")), "")


def _run(command: list[str], seconds: float) -> str | None:
    """Returns what a program prints; None if it is missing, fails or takes too long."""
    import subprocess

    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        result = subprocess.run(command, capture_output=True, timeout=seconds, env=environ, stdin=subprocess.DEVNULL)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return result.stdout.decode("utf-8", "replace") if result.returncode == 0 else None


# --- GPUs -------------------------------------------------------------------------------------------------------------


def _describe_gpus(driver: Path = Path("/proc/driver/nvidia"), cards: Path = Path("/sys/class/drm")) -> dict[str, Any]:
    models = [_read_field(path, "Model") for path in sorted(driver.glob("gpus/*/information"))]
    version = ""
    if (driver / "version").is_file():
        match = re.search(r"Module.*?\s(\d+\.[\d.]+)", (driver / "version").read_text("utf-8", "replace"))
        version = match[1] if match else ""
    if not any(models):
        models = [_read_line(path) for path in sorted(cards.glob("card*/device/product_name"))]
    if not any(models) and driver.exists():  # a container without the files of the devices
        text = _run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], GPU_SECONDS) or ""
        models = [line.strip() for line in text.splitlines()]
    names = Counter(clean_name(model, 100) for model in models if model)
    return {**({"gpus": dict(names)} if names else {}), **({"driver": version} if version else {})}


def _read_field(path: Path, name: str) -> str:
    lines = path.read_text("utf-8", "replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "")


def _read_line(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
