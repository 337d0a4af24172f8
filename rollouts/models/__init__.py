"""The rows. One-row rules are methods, questions over many rows are QuerySet methods, actions are the verbs' files."""

from rollouts.models.artifacts import Artifact, ArtifactQuerySet, Blob
from rollouts.models.dumps import Dump, DumpQuerySet, Segment
from rollouts.models.findings import EvidenceItem, Finding, FindingQuerySet
from rollouts.models.flag_actions import BulkFlagAction
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
from rollouts.models.samples import DuplicateSource, Flag, Sample, SampleQuerySet
from rollouts.models.steps import Step, StepQuerySet
from rollouts.models.tokens import Token, hash_secret
from rollouts.models.viewed import ViewedSample

__all__ = [
    "MAX_TIMED_STEPS", "SILENT_AFTER", "SILENT_AFTER_STEPS", "compute_median_gap", "Artifact", "ArtifactQuerySet",
    "Attempt", "AuditEntry", "Binding", "Blob", "Block", "BulkFlagAction", "Dump", "DumpQuerySet",
    "DuplicateSource", "Entry", "EvidenceItem", "Finding", "FindingQuerySet", "Flag", "Membership", "MetricRow",
    "Pin", "Project", "ProjectQuerySet", "Replay", "ReplayPlan", "Revision", "Run", "RunAlias", "RunQuerySet",
    "Sample", "SampleQuerySet", "Segment", "Series", "Step", "StepQuerySet", "Token", "ViewedSample",
    "default_reasons", "hash_secret",
]  # fmt: skip
