"""Real steps of verl's rollout skip and the tokenizer of their runs, as uploaded and checked artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollouts.indexing import indexer
from rollouts.models import Artifact, Dump, Run
from rollouts.pins import artifact_check
from tests.rollouts.support.artifacts import register_artifact, upload_files

DATA = Path(__file__).parents[2] / "data"
SHAPE = {"samples_per_prompt": 4, "max_prompt_length": 128, "max_response_length": 256}


def find_step_folder(tree: str, step: str = "1") -> Path:
    """The folder of a step in one of the trees of `tests/data`."""
    (result,) = (DATA / tree).glob(f"*/GBS*/{step}")
    return result


V0, NUMPY, ASYNC = (
    find_step_folder("verl_skip/main"),
    find_step_folder("verl_skip/numpy_ser"),
    find_step_folder("verl_skip/async"),
)
V1, V2 = find_step_folder("verl_tq/sync"), find_step_folder("verl_v2/main", "genstep_000001")
COLOCATED = find_step_folder("verl_skip/colocate_rm", "3")
TOKENIZER = DATA / "tokenizer"


def read_files(path: Path) -> dict[str, bytes]:
    return {str(item.relative_to(path)): item.read_bytes() for item in path.rglob("*") if item.is_file()}


def create_ready_artifact(run: Run, path: Path, step: int = 1, **more: Any) -> Artifact:
    """Registers, uploads and checks an artifact. Its dumps are not indexed yet."""
    files = read_files(path)
    artifact = upload_files(register_artifact(run, step, files, **{"facts": SHAPE, **more}), files)
    artifact_check.check_artifact(artifact.pk)
    artifact.refresh_from_db()
    assert artifact.state == Artifact.State.READY, artifact.message
    return artifact


def add_tokenizer(run: Run) -> Artifact:
    files = {"tokenizer.json": (TOKENIZER / "tokenizer.json").read_bytes()}
    artifact = upload_files(register_artifact(run, 0, files, role="tokenizer"), files)
    artifact_check.check_artifact(artifact.pk)
    artifact.refresh_from_db()
    return artifact


def index_waiting_dumps(run: Run) -> list[Dump]:
    """Indexes the waiting dumps of a run and returns all its dumps."""
    for dump in run.dumps.filter(state=Dump.State.RECEIVED).order_by("pk"):
        indexer.index_dump(dump.pk)
    return list(run.dumps.order_by("pk"))
