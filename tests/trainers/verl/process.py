"""Runs a script of `inside/` in the trainers' environment, as a training next to a receiver."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

from tests.rolloutdeck.support.fake_server import Receiver
from tests.trainers.interpreter import FIXED_VARIABLES, build_clean_environment, require_python, run_script

__all__ = ["ROOT", "Training", "install_entry_points", "require_python", "train"]

ROOT = Path(__file__).parents[3]
SCRIPTS = Path(__file__).with_name("inside")


@dataclass
class Training:
    """What a script wrote: to the receiver, to its folder, to its standard output and error."""

    receiver: Receiver
    folder: Path
    done: subprocess.CompletedProcess[str]

    def rows(self, split: str, step: int) -> list[dict[str, Any]]:
        return [row for query, rows in self.list_batches(split) if int(query["step"]) == step for row in rows]

    def list_batches(self, split: str) -> list[tuple[dict[str, str], list[dict[str, Any]]]]:
        matches = [(query, body) for _, query, body in self.receiver.dumps if query["split"] == split]
        return [(query, [json.loads(line) for line in body.splitlines()]) for query, body in matches]

    def values(self, step: int) -> dict[str, Any]:
        """All metrics of a step, from however many calls."""
        points = [point["values"] for point in self.receiver.points() if point["step"] == step]
        return {name: value for values in points for name, value in values.items()}

    def outcomes(self) -> list[str]:
        return [body["outcome"] for body in self.receiver.posted("/finish/")]

    def read_output(self) -> Any:
        return json.loads(self.done.stdout.splitlines()[-1])

    def json(self, path: str) -> Any:
        return json.loads((self.folder / path).read_text())

    def read_json_lines(self, path: str) -> list[dict[str, Any]]:
        """A file of JSON lines that verl itself wrote."""
        return [json.loads(line) for line in (self.folder / path).read_text().splitlines()]


def install_entry_points(folder: Path) -> None:
    """Writes our entry points to `folder` as pip does, so that verl finds the checkout as a package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"rolloutdeck-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rolloutdeck\nVersion: {project['version']}\n")
    groups = project["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in groups[group].items()) for group in groups
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def train(
    script: str, *words: str, folder: Path, receiver: Receiver | None = None, processes: int = 1, **environ: str
) -> Training:
    """Runs `script` with `folder` and `words` as its arguments, in several `processes` as torchrun starts them without
    a name; it has to end well unless `may_fail` is given."""
    receiver = receiver or Receiver()
    may_fail = environ.pop("may_fail", "")
    values = {
        **build_clean_environment(),
        **FIXED_VARIABLES,
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
        "VERL_USE_EXTERNAL_MODULES": "rolloutdeck.trainers.verl",
        "ROLLOUTDECK_URL": receiver.url,
        "ROLLOUTDECK_TOKEN": "t",
        **environ,
    }
    path, arguments = (SCRIPTS / script).resolve(), [str(folder), *words]
    if processes > 1:
        starter = ["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
        command = [require_python(), *starter, f"--nproc-per-node={processes}", str(path), *arguments]
        done = subprocess.run(command, cwd=folder, env=values, capture_output=True, text=True, timeout=600)
    else:
        done = run_script(path, arguments, cwd=folder, env=values)
    assert may_fail or done.returncode == 0, done.stderr[-4000:]
    return Training(receiver, folder, done)
