"""The tables. Rules about one row are methods, queries are QuerySet methods. Other folders change rows."""

from rollouts.models.artifacts import Artifact, ArtifactQuerySet, Blob
from rollouts.models.dumps import Dump, DumpQuerySet, Segment
from rollouts.models.findings import EvidenceItem, Finding, FindingQuerySet
from rollouts.models.metrics import Block, MetricRow, Series
from rollouts.models.pins import Binding, Entry, Pin, Replay, ReplayPlan, Revision
from rollouts.models.projects import AuditEntry, Membership, Project, ProjectQuerySet, default_reasons
from rollouts.models.runs import (
    MAX_TIMED_STEPS,
    SILENT_AFTER,
    SILENT_AFTER_STEPS,
    Attempt,
    Run,
    RunAlias,
    RunQuerySet,
    compute_median_gap,
)
from rollouts.models.samples import BulkFlagAction, DuplicateSource, Flag, Sample, SampleQuerySet, ViewedSample
from rollouts.models.steps import STEP_POSITION, Step, StepQuerySet, get_step_position
from rollouts.models.tokens import Token, hash_secret

__all__ = [
    "MAX_TIMED_STEPS", "SILENT_AFTER", "SILENT_AFTER_STEPS", "STEP_POSITION", "Artifact", "ArtifactQuerySet",
    "Attempt", "AuditEntry", "Binding", "Blob", "Block", "BulkFlagAction", "Dump", "DumpQuerySet",
    "DuplicateSource", "Entry", "EvidenceItem", "Finding", "FindingQuerySet", "Flag", "Membership", "MetricRow",
    "Pin", "Project", "ProjectQuerySet", "Replay", "ReplayPlan", "Revision", "Run", "RunAlias", "RunQuerySet",
    "Sample", "SampleQuerySet", "Segment", "Series", "Step", "StepQuerySet", "Token", "ViewedSample",
    "compute_median_gap", "default_reasons", "get_step_position", "hash_secret",
]  # fmt: skip
