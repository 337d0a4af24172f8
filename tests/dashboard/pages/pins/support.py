"""Helpers for the tests of pins: artifacts on another machine, forms, pages and panels."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from rollouts.models import Artifact, Project, Run
from rollouts.pins import artifacts
from rollouts.pins.manifests import ArtifactManifest
from rollouts.replay import plans

TRAP = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\u202e{{ 7*7 }}\" '"
GENERATED = r"<title>step \d+: will generate</title>"  # in the strip of a plan
FACTS = {"serialisation": "torch", "rows": 8, "prompts": 4, "samples_per_prompt": 2, "model": "tiny"}
HOST = "node7"


def create_remote_artifact(run: Run, step: int, **more: Any) -> Artifact:
    """A rollout dump of a step, whose bytes are on `node7`."""
    path, role = str(more.pop("path", f"/dumps/{step}")), more.pop("role", "rollout")
    message: dict[str, Any] = {
        "files": {"gen_batch.dp": {"sha256": f"{step:064x}", "bytes": 1000}},
        "origin": {"host": HOST, "path": path, "command": f"rolloutdeck import {path} --project math --run grpo"},
        "facts": FACTS,
    }
    return artifacts.store_manifest(run, "files", ArtifactManifest(role, step, **{**message, **more}))[0]


def get_page(client: Client, url: str, status: int = 200, **headers: str) -> str:
    answer = client.get(url, headers=headers)
    assert answer.status_code == status, (url, answer.status_code)
    return answer.content.decode()


def get_panel(client: Client, url: str, name: str) -> str:
    return get_page(client, url, **{"HX-Request": "true", "HX-Target": name})


def build_pin_form(step: int = 2, **fields: str) -> dict[str, str]:
    return {"split": "train", "step_kind": "global_step", "step": str(step), "attempt": "files", **fields}


def build_plan_form(base: int, *entries: tuple[int, int], **fields: str) -> dict[str, Any]:
    pairs = {"pin": [pin for pin, _ in entries], "target": [target for _, target in entries]}
    return (
        {"project": "math", "base": base, "action": "cache", "on_mismatch": "generate", "do": "save"} | pairs | fields
    )


def record_poll(pk: int, run: Run, seconds: int = 0) -> None:
    moment = timezone.now() - timedelta(seconds=seconds)
    Run.objects.filter(pk=run.pk).update(pollers={HOST: moment.isoformat()})


def count_segments(page: str, word: str, strip: str = "plan-strip") -> int:
    """How many cells of a strip are drawn as `word`."""
    result = re.search(rf'id="{strip}".*?</section>', page, re.DOTALL)
    assert result
    return result.group().count(f'class="cell-{word}" width="94%"')


def list_entries(plan: str) -> list[tuple[int, int]]:
    revision = plans.find_current_revision(Project.objects.get(), plan)
    return list(revision.entries.order_by("target_step").values_list("target_step", "pin")) if revision else []
