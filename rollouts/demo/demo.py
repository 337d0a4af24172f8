"""Loads the recorded demo into a project.

`recording.zip` is written by `scripts/record_demo.py` with the trainings of `examples/tiny_demo.py`. It has a folder
for each run:

| file                           | content                                                      |
|--------------------------------|--------------------------------------------------------------|
| `config.json`                  | the configuration                                            |
| `{train,eval}/{step}.jsonl`    | rows of `log_samples`, half of the groups of each tenth step |
| `metrics.jsonl`                | the metrics of every step                                    |
| `tokenizer.json`               | its tokenizer                                                |
| `responses.json`, `facts.json` | the pinned step as the trainer loads it, and its facts       |
"""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from rollouts import findings, indexing, ingest, pins, replay
from rollouts.flags import flag_samples
from rollouts.models import Finding, Project, Run, Sample
from rollouts.storage import create_incoming_path

DEMO_PROJECT = "demo"
RECORDING = Path(__file__).with_name("recording.zip")
MAIN_RUN, FAULTY_RUN, REPLAY_RUN = "tiny-grpo", "tiny-grpo-any", "tiny-grpo-replay"
ATTEMPT, PLAN, PINNED_STEP = "demo", "demo", 40
FLAGGED_SAMPLES = 3


def load_demo(project: Project, by: User) -> list[Run]:
    """Returns the runs. A repeated call adds what is missing. Raises the errors of the functions that it calls."""
    with zipfile.ZipFile(RECORDING) as archive:
        main = load_run(archive, project, by, MAIN_RUN)
        pin_recorded_step(archive, main, by)
        annotate(main, by)
        return [main, load_run(archive, project, by, FAULTY_RUN), load_run(archive, project, by, REPLAY_RUN, PLAN)]


def load_run(archive: zipfile.ZipFile, project: Project, by: User, name: str, plan: str = "") -> Run:
    """Creates the run and indexes its files. With `plan`, the run replays it, and its replay is recorded."""
    uid, config = f"demo-{project.pk}-{name}", json.loads(archive.read(f"{name}/config.json"))
    run, created = ingest.open_run(project, uid=uid, name=name, config=config, attempt=ATTEMPT, owner=by)
    if plan and created:
        with transaction.atomic():
            replay.bind_run(run, plan, read_facts(archive, name))
    store_artifact(run, "tokenizer", 0, "tokenizer.json", archive.read(f"{name}/tokenizer.json"), {})
    for path in sorted(archive.namelist()):
        folder, _, file = path.removeprefix(f"{name}/").rpartition("/")
        if path.startswith(f"{name}/") and folder:
            index_file(run, archive.read(path), folder, int(file.removesuffix(".jsonl")), f"{folder}/{file}", "native")
    index_file(run, archive.read(f"{name}/metrics.jsonl"), "train", None, "metrics.jsonl", "metrics")
    if plan:
        replay.record_replay_outcome(run, ATTEMPT, PINNED_STEP, "hit", rows=read_facts(archive, name)["rows"])
    ingest.finish_attempt(run, ATTEMPT)
    return run


def read_facts(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(archive.read(f"{name}/facts.json"))
    return facts


def index_file(run: Run, body: bytes, split: str, step: int | None, source: str, format_name: str) -> None:
    header = ingest.DumpHeader(ATTEMPT, split, step, source=source, format=format_name)
    path, sha256 = write_incoming_file(body)
    dump, _ = ingest.accept_dump(run, header, sha256, path, len(body))
    indexing.index_dump(dump.pk)


def write_incoming_file(body: bytes) -> tuple[Path, str]:
    path = create_incoming_path()
    path.write_bytes(body)
    return path, hashlib.sha256(body).hexdigest()


def store_artifact(run: Run, role: str, step: int, name: str, body: bytes, facts: dict[str, Any]) -> None:
    """Registers one file, stores it and checks that it is safe to load."""
    path, sha256 = write_incoming_file(body)
    manifest = pins.ArtifactManifest(role, step, {name: {"sha256": sha256, "bytes": len(body)}}, facts=facts)
    with transaction.atomic():
        artifact, _ = pins.register_artifact(run, ATTEMPT, manifest)
        pins.store_artifact_file(artifact, sha256, path, len(body))
    for dump in pins.check_artifact(artifact.pk):
        indexing.index_dump(dump)


def pin_recorded_step(archive: zipfile.ZipFile, run: Run, by: User) -> None:
    facts, body = read_facts(archive, run.name), archive.read(f"{MAIN_RUN}/responses.json")
    store_artifact(run, "rollout", PINNED_STEP, "responses.json", body, facts)
    with transaction.atomic():
        replay.pin_into_plan(
            run, PINNED_STEP, by, target_step=PINNED_STEP, plan=PLAN, note=f"Replayed by {REPLAY_RUN}."
        )


def annotate(run: Run, by: User) -> None:
    """Flags wrong samples of the pinned step, and writes a finding with one of them, their number and the score."""
    title = "What the model gets wrong early on"
    if Finding.objects.filter(project=run.project, title=title).exists():
        return
    wrong = Sample.objects.current_and_visible().filter(step__run=run, step__step=PINNED_STEP, step__split="train")
    samples = list(wrong.filter(correct=False).order_by("score", "pk")[:FLAGGED_SAMPLES])
    text = "The intermediate steps and the result disagree."
    flag_samples(run, [sample.pk for sample in samples], by, text=text)
    note = "Many groups have right and wrong answers at this step, so the model learns from them."
    finding = findings.create_finding(run.project, by, title=title, note=note)
    findings.add_sample_evidence(finding, samples[0], by, words="A wrong answer in the right form.")
    findings.add_query_evidence(finding, run, by, words="All of them.", q="is:wrong", split="train", step=PINNED_STEP)
    findings.add_chart_evidence(finding, [run], ["critic/score/mean"], by, words="The score.")
