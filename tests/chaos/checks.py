"""What must hold after the faults: everything acknowledged exists once, and the pages show it."""

from __future__ import annotations

import html
import json
import re
import time
import urllib.parse
from collections import Counter
from typing import Any

from tests.chaos.trainer import NAME, PROJECT, build_rows, read_ledger
from tests.chaos.world import PLAN, WATCHED, World
from tests.support.server import Session
from tests.support.writer import rows

MAX_SETTLE_SECONDS = 300.0


def read_samples(world: World, run: str) -> Counter[tuple[int, str, float]]:
    """The samples of a run: (step, response, score) with their count."""
    query = urllib.parse.urlencode({"run": run, "format": "jsonl"})
    lines = world.product.fetch(f"/api/v1/exports/samples/?{query}").splitlines()
    return Counter((row["step"], row["response"], row["score"]) for row in map(json.loads, lines))


def list_expected(world: World) -> dict[str, Counter[tuple[int, str, float]]]:
    live = [(step, row["response"], row["score"]) for step in read_ledger(world.ledger) for row in build_rows(step)]
    steps = range(1, world.next_dump_step)
    watched = [(step, row["output"], row["score"]) for step in steps for row in rows(step, 32)]
    return {NAME: Counter(dict.fromkeys(live, 1)), WATCHED: Counter(watched)}


def find_differences(world: World) -> list[str]:
    """Compares the samples with what was acknowledged. The last step of a killed training may exist without that."""
    runs = {run["name"]: run["id"] for run in world.get(f"runs/?project={PROJECT}")["results"]}
    differences = []
    for name, expected in list_expected(world).items():
        if name not in runs:
            differences.append(f"the run {name} is missing")
            continue
        found = read_samples(world, runs[name])
        missing, extra = expected - found, found - expected
        if missing:
            dumps = world.get(f"runs/{runs[name]}/")["dumps"]
            differences.append(f"{name}: {missing.total()} missing, as {min(missing)[:2]}; dumps: {dumps}")
        repeated = {sample: count for sample, count in found.items() if count > 1}
        if repeated:
            differences.append(f"{name}: {len(repeated)} exist more than once, as {min(repeated)[:2]}")
        known = Counter(
            (step, row["response"], row["score"]) for step in {key[0] for key in extra} for row in build_rows(step)
        )
        if unknown := extra - (known if name == NAME else Counter()):
            differences.append(f"{name}: {unknown.total()} were never written, as {min(unknown)[:2]}")
    return differences


def wait_for_samples(world: World) -> None:
    """Waits until all acknowledged samples are there. Raises AssertionError with what differs."""
    deadline = time.monotonic() + MAX_SETTLE_SECONDS
    differences = ["nothing was compared"]
    while differences and time.monotonic() < deadline:
        try:
            differences = find_differences(world)
        except OSError as error:  # the server starts again after the last fault
            differences = [str(error)]
        time.sleep(1)
    assert not differences, differences


def check_annotations(world: World) -> None:
    """Confirmed flags exist exactly once, unconfirmed ones at most once; confirmed pins and plan lines exist."""
    runs = {run["name"]: run["id"] for run in world.get(f"runs/?project={PROJECT}")["results"]}
    flags = list_pages(world, f"flags/?run={runs[NAME]}")
    texts = Counter(flag["text"] for flag in flags)
    assert not set(world.flags) - set(texts), sorted(set(world.flags) - set(texts))
    assert not [text for text, count in texts.items() if count > 1 or text not in world.unconfirmed]
    assert all((flag["sample"], flag["label"]) == world.labels[flag["text"]] for flag in flags)
    pins = {pin["id"]: (pin["step"], pin["note"]) for pin in list_pages(world, f"pins/?project={PROJECT}")}
    confirmed = {pin: (step, f"pin of step {step}") for step, pin in world.pins.items()}
    assert confirmed.items() <= pins.items(), confirmed.items() - pins.items()
    plan = world.get(f"projects/{PROJECT}/replay-plan/?plan={PLAN}") if world.pins else {"entries": []}
    entries = [(entry["pin"], entry["target_step"]) for entry in plan["entries"]]
    assert {(pin, step) for step, pin in world.pins.items()} <= set(entries)
    assert len(entries) == len(set(entries)) and {pin for pin, _ in entries} <= set(pins)


def check_pages(world: World, session: Session, runs: dict[str, str], counts: dict[str, Counter[int]]) -> int:
    """The pages have the numbers of the API: samples of steps, texts of samples, flags and pins."""
    pages = 0

    def expect(path: str, *texts: str) -> None:
        nonlocal pages
        words = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", session.get(path))).split())
        missing = [text for text in texts if text not in words]
        assert not missing, (path, missing)
        pages += 1

    expect("/", *runs)
    expect("/pins/", *(f"pin of step {step}" for step in list(world.pins)[-5:]))
    for name, uid in runs.items():
        expect(f"/runs/{uid}/", name)
        for step in (min(counts[name]), max(counts[name])):
            expect(f"/runs/{uid}/steps/{step}/", f"of {counts[name][step]} recorded samples")
    for text in list(world.flags)[:5]:
        sample = world.get(f"samples/{world.labels[text][0]}/")
        expect(f"/samples/{sample['id']}/", sample["response"], text)
    return pages


def list_pages(world: World, path: str) -> list[Any]:
    """All results of a list of the API."""
    results: list[Any] = []
    answer = world.get(path)
    while True:
        results += answer["results"]
        if not answer.get("next"):
            return results
        parts = urllib.parse.urlsplit(answer["next"])
        answer = world.get(f"{parts.path.removeprefix('/api/v1/')}?{parts.query}")


def check_everything(world: World, session: Session | None = None) -> dict[str, int]:
    """Raises AssertionError unless all promises hold. Returns what was checked, counted. `session`: of a person who has
    used the sign-in link, which works once."""
    wait_for_samples(world)
    check_annotations(world)
    expected = list_expected(world)
    for name, samples in expected.items():
        run = next(run for run in world.get(f"runs/?project={PROJECT}")["results"] if run["name"] == name)
        steps = {step["step"]: step["samples"] for step in list_pages(world, f"runs/{run['id']}/steps/?split=train")}
        for step, count in Counter(step for step, _, _ in samples.elements()).items():
            assert steps[step] == count, (name, step, steps[step], count)
        failed = [dump for dump in list_pages(world, f"runs/{run['id']}/dumps/") if dump["state"] == "failed"]
        assert not failed, failed[0]
    assert json.loads(world.product.fetch("/readyz"))
    runs = {run["name"]: run["id"] for run in world.get(f"runs/?project={PROJECT}")["results"]}
    counts = {name: Counter(step for step, _, _ in samples.elements()) for name, samples in expected.items()}
    session = session or world.product.open_session()
    return {
        "pages": check_pages(world, session, {name: runs[name] for name in expected}, counts),
        "samples": sum(samples.total() for samples in expected.values()),
        "flags": len(world.flags),
        "pins": len(world.pins),
        "cut connections": world.proxy.cuts,
        "repeated requests": world.proxy.repeats,
    }
