"""What a recorded data folder holds: how it gets there and how it is read back. Both use only the public API.

`scripts/record_data_folder.py` records it with one version, `tests/test_old_data.py` reads it with every later one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from tests.support.server import Product

DATA = Path(__file__).parent.parent / "data"
PROJECT = "math"
RUNS = {  # name -> folder below tests/data, and its files
    "verl": ("verl_jsonl/v0", ["rollout/1.jsonl", "rollout/2.jsonl", "val/0.jsonl", "metrics.jsonl"]),
    "trl": ("trl/plain", ["completions/completions_00004.parquet"]),
    "slime": ("slime", ["rollout_data/0.pt"]),
    "verl-skip": (
        "verl_skip/async",
        [f"qwen2-tiny_async_rl-acceptance/GBS1_N4_in128_out256/1/{name}" for name in ("gen_batch.dp", "meta.json")],
    ),
}
METRIC = "critic/score/mean"
STEP_FIELDS = ("step_kind", "samples", "groups", "superseded")
SAMPLE_FIELDS = ("split", "step", "group", "index", "score")
TEXT_FIELDS = ("prompt", "response", "ground_truth")
PLAN_FIELDS = ("plan", "revision", "action", "on_mismatch", "exclude_flagged", "loosened")


def write_content(product: Product, folder: Path) -> None:
    """Imports the dumps of `RUNS`, copied to `folder`, and does what users do with them."""
    for name, (source, files) in RUNS.items():
        for file in files:
            target = folder / name / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(DATA / source / file, target)
        status = product.command("import", str(folder / name), "--project", PROJECT, "--run", name).wait(120)
        assert status == 0, f"import of {name} ended with {status}"
    uids = {run["name"]: run["id"] for run in product.get("runs/")["results"]}
    product.post(f"runs/{uids['trl']}/", {"tags": ["baseline"], "archived": True}, "PATCH")
    product.post(f"projects/{PROJECT}/", {"correct": "score>0.5"}, "PATCH")

    ids = [row["id"] for row in product.get(f"samples/?run={uids['verl']}&split=train&step=1")["results"]]
    product.post("flags/", {"sample": ids[0], "label": "bad", "reason": "repetition", "text": "Says it twice. 重复"})
    product.post("flags/", {"samples": ids[1:4], "label": "good"})
    flag = product.post("flags/", {"sample": ids[4], "label": "unsure"})
    product.post(f"flags/{flag['id']}/", {"withdrawn": True}, "PATCH")

    (textless, *_) = product.get(f"samples/?run={uids['verl-skip']}&step=1")["results"]
    product.post("flags/", {"sample": textless["id"], "label": "bad", "reason": "other", "text": "Tokens only."})

    pins = [
        product.post("pins/", {"run": uids["slime"], "step": 0, "step_kind": "rollout_id", "note": "best so far"}),
        product.post("pins/", {"run": uids["verl-skip"], "step": 1, "step_kind": "feed_index"}),
    ]
    entries = [{"pin": pin["id"], "target_step": 5 + number} for number, pin in enumerate(pins)]
    plan = {"entries": entries, "action": "repeat_last", "exclude_flagged": True}
    product.post(f"projects/{PROJECT}/replay-plan/", plan, "PUT", **{"If-Match": "0"})

    sample = product.get(f"samples/{ids[0]}/")
    finding = product.post("findings/", {"project": PROJECT, "title": "Repeats", "note": "The model **repeats**."})
    url = f"findings/{finding['id']}/exhibits/"
    quote = {"field": "response", "start": 0, "end": min(20, len(sample["response"]))}
    product.post(url, {"sample": ids[0], "quotes": [quote], "words": "A sample."})
    product.post(url, {"run": uids["verl"], "q": "score<0.5", "split": "train", "step": 1, "words": "A query."})
    product.post(url, {"run": uids["verl"], "names": [METRIC], "words": "A chart."})

    session, settings = product.open_session(), f"/settings/{PROJECT}/"
    session.submit(f"{settings}members/", settings, user="bob", role="annotator")
    token = product.post("tokens/", {"name": "cluster", "project": PROJECT, "scopes": ["ingest", "read"]})
    product.post(f"tokens/{token['id']}/", {}, "DELETE")


def read_content(product: Product) -> dict[str, Any]:
    """The content as the API gives it, without what a new version may change: times, addresses, derived values."""
    runs = product.get("runs/")["results"]
    project, plan = product.get(f"projects/{PROJECT}/"), product.get(f"projects/{PROJECT}/replay-plan/")
    return {
        "runs": {run["name"]: read_run(product, run["id"]) for run in runs if run["name"] in RUNS},
        "project": pick(project, "slug", "reasons", "correct", "loosened", "members"),
        "flags": [
            {**pick(flag, "id", "sample", "user", "label", "reason", "text"), "withdrawn": bool(flag["withdrawn_at"])}
            for flag in product.get("flags/?withdrawn=true")["results"]
        ],
        "pins": [
            pick(pin, "id", "run", "step", "step_kind", "split", "note", "user", "state", "bytes", "artifacts")
            for pin in product.get("pins/")["results"]
        ],
        "plan": {
            **pick(plan, *PLAN_FIELDS),
            "entries": [pick(entry, "target_step", "pin", "role") for entry in plan["entries"]],
        },
        "findings": [
            read_finding(product.get(f"findings/{row['id']}/"))
            for row in product.get(f"findings/?project={PROJECT}")["results"]
        ],
        "tokens": [
            {**pick(token, "name", "project", "scopes"), "revoked": bool(token["revoked_at"])}
            for token in product.get("tokens/")["results"]
            if token["project"]
        ],
    }


def read_run(product: Product, uid: str) -> dict[str, Any]:
    run, steps = product.get(f"runs/{uid}/"), product.get(f"runs/{uid}/steps/")["results"]
    samples = read_samples(product, uid)
    first = min(samples)
    return {
        **pick(run, "id", "project", "framework", "status", "tags", "config", "dumps"),
        "archived": bool(run["archived_at"]),
        "metric": product.get(f"runs/{uid}/metrics/?name={METRIC}"),
        "steps": {f"{step['split']} {step['step']}": pick(step, *STEP_FIELDS) for step in steps},
        "artifacts": [
            pick(artifact, "id", "step", "role", "state", "files")
            for artifact in product.get(f"runs/{uid}/artifacts/")["results"]
        ],
        "samples": {
            pk: {**pick(sample, *SAMPLE_FIELDS), "texts": hash_texts(sample)} for pk, sample in samples.items()
        },
        "texts": {first: pick(samples[first], *TEXT_FIELDS)},
    }


def read_samples(product: Product, uid: str) -> dict[str, Any]:
    lines = product.fetch(f"/api/v1/exports/samples/?run={uid}&step=all&attempt=all").split(b"\n")
    return {sample["id"]: sample for sample in map(json.loads, filter(None, lines))}


def read_finding(finding: dict[str, Any]) -> dict[str, Any]:
    exhibits = [pick(exhibit, "kind", "words", "held") for exhibit in finding["exhibits"]]
    return {**pick(finding, "id", "title", "note", "user", "version"), "exhibits": exhibits}


def hash_texts(sample: dict[str, Any]) -> str:
    texts = json.dumps([sample[name] for name in TEXT_FIELDS]).encode()
    return hashlib.sha256(texts).hexdigest()[:16]


def pick(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}
