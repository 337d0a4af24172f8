"""Registers artifacts and uploads their bytes with the functions of the product."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from rolloutdeck.protocol import manifest
from rollouts.models import Artifact, Run
from rollouts.pins import artifacts
from rollouts.pins.manifests import ArtifactManifest
from rollouts.storage import files as storage


def encode_meta(step: int) -> bytes:
    return json.dumps({"global_steps": step}).encode()


def describe_files(files: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    return {path: {"sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)} for path, body in files.items()}


def build_manifest(files: dict[str, bytes], step: int = 1, **more: Any) -> ArtifactManifest:
    return ArtifactManifest.from_request({"role": "rollout", "step": step, "files": describe_files(files), **more})


def register_artifact(
    run: Run, step: int = 1, files: dict[str, bytes] | None = None, attempt: str = "files", **more: Any
) -> Artifact:
    """Registers an artifact of a step without uploading its bytes."""
    return artifacts.store_manifest(
        run, attempt, build_manifest(files or {"meta.json": encode_meta(step)}, step, **more)
    )[0]


def upload_files(artifact: Artifact, files: dict[str, bytes]) -> Artifact:
    """Stores the files of an artifact. They are not checked yet."""
    for body in files.values():
        plain = storage.create_incoming_path()
        plain.write_bytes(body)
        artifacts.store_artifact_file(artifact, hashlib.sha256(body).hexdigest(), plain, len(body))
    artifact.refresh_from_db()
    return artifact


def compute_key(files: dict[str, bytes]) -> str:
    return manifest.compute_artifact_key(describe_files(files))
