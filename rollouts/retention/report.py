"""The dry run: what the next pass of a policy would drop, and why the rest is kept. Changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.utils import timezone

from rollouts.models import Dump, RetentionPolicy, Run, Step
from rollouts.retention.limits import find_limits, find_steps
from rollouts.retention.protection import load_protection
from rollouts.retention.raw_dumps import find_raw_reason
from rollouts.retention.selection import StepDecision, decide_step
from rollouts.retention.sizes import BYTES_PER_SAMPLE, StepSizes, find_raw_dumps, load_step_sizes, measure_raw_dump

MAX_STORED_STEPS = 2000
BYTE_KINDS = ("bodies", "raw", "index")


def build_report(policy: RetentionPolicy) -> dict[str, Any]:
    """Returns {made_at, runs, totals, raw}: per run and step what would be dropped by which rule, the bytes by kind,
    and the kept samples by reason."""
    protection = load_protection(policy.project)
    sizes = load_step_sizes(policy.project)
    limits = find_limits(policy, protection, sizes)
    runs: dict[int, RunReport] = {}
    dropped_steps: set[int] = set()
    for step in find_steps(policy.project).order_by("run", "split", "step", "pk").iterator(chunk_size=1000):
        decision = decide_step(step, policy, protection, limits)
        runs.setdefault(step.run_id, RunReport(step.run)).add(decision, sizes)
        dropped_steps.update([step.pk] if decision.drops else [])
    rows = [report.serialize() for report in runs.values()]
    return {
        "made_at": timezone.now().isoformat(),
        "runs": rows,
        "totals": sum_reports(rows),
        "raw": report_raw_dumps(policy, dropped_steps),
    }


def store_report(policy: RetentionPolicy) -> dict[str, Any]:
    """Builds the report and stores it for the page, with at most MAX_STORED_STEPS steps in detail."""
    report = build_report(policy)
    left = MAX_STORED_STEPS
    stored = {**report, "runs": [dict(row) for row in report["runs"]]}
    for row in stored["runs"]:
        row["steps_not_listed"] = max(0, len(row["steps"]) - left)
        row["steps"] = row["steps"][:left]
        left -= len(row["steps"])
    policy.report = stored
    if policy.pk:
        RetentionPolicy.objects.filter(pk=policy.pk).update(report=stored)
    return report


class RunReport:
    """What would be dropped of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.samples = self.dropped = 0
        self.bytes: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.steps: list[dict[str, Any]] = []

    def add(self, decision: StepDecision, sizes: StepSizes) -> None:
        step = decision.step
        remaining = step.samples - step.dropped
        self.samples += remaining
        self.kept.update(decision.reasons)
        if not decision.drops:
            return
        self.dropped += decision.dropped
        self.rules[decision.rule] += 1
        freed = estimate_freed_bytes(decision, sizes)
        self.bytes.update(freed)
        self.steps.append(
            {
                "step": step.step, "split": step.split, "step_kind": step.step_kind, "attempt": step.attempt_id,
                "rule": decision.rule, "samples": remaining, "drops": decision.dropped, "kept": decision.reasons,
                "bytes": sum(freed.values()),
            }
        )  # fmt: skip

    def serialize(self) -> dict[str, Any]:
        return {
            "run": self.run.uid, "name": self.run.name, "samples": self.samples, "drops": self.dropped,
            "steps": self.steps, "rules": dict(self.rules), "kept": dict(self.kept),
            "bytes": {kind: self.bytes[kind] for kind in BYTE_KINDS},
        }  # fmt: skip


def estimate_freed_bytes(decision: StepDecision, sizes: StepSizes) -> dict[str, int]:
    """The raw bytes of a step go as soon as any of its samples is dropped: the body has the kept ones."""
    step = decision.step
    share = decision.dropped / max(1, step.samples - step.dropped)
    return {
        "bodies": int(sizes.count_bodies(step) * share),
        "raw": sizes.count_raw(step),
        "index": BYTES_PER_SAMPLE * decision.dropped,
    }


def sum_reports(rows: list[dict[str, Any]]) -> dict[str, Any]:
    kept: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    for row in rows:
        kept.update(row["kept"])
        rules.update(row["rules"])
    return {
        "samples": sum(row["samples"] for row in rows),
        "drops": sum(row["drops"] for row in rows),
        "steps": sum(len(row["steps"]) for row in rows),
        "runs": sum(bool(row["steps"]) for row in rows),
        "bytes": {kind: sum(row["bytes"][kind] for row in rows) for kind in BYTE_KINDS},
        "kept": dict(kept.most_common()),
        "rules": dict(rules),
    }


def report_raw_dumps(policy: RetentionPolicy, dropped_steps: set[int]) -> dict[str, Any]:
    """Returns the raw dumps that would be verified and then dropped, without those of steps that lose samples."""
    kept: Counter[str] = Counter()
    dumps = size = 0
    if policy.raw_after_days is not None:
        positions = set(Step.objects.filter(pk__in=dropped_steps).values_list("attempt", "split", "step_kind", "step"))
        stored = find_raw_dumps(Dump.objects.filter(run__project=policy.project, run__deleted_at=None))
        for dump in stored.select_related("run").iterator(chunk_size=1000):
            if (dump.attempt_id, dump.split, dump.step_kind, dump.step) in positions:
                continue
            if reason := find_raw_reason(dump, policy):
                kept[reason] += 1
                continue
            dumps += 1
            size += measure_raw_dump(policy.project_id, dump.sha256)
    return {"dumps": dumps, "bytes": size, "kept": dict(kept.most_common())}
