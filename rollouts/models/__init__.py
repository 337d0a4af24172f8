"""The tables. Rules about one row are methods, queries are QuerySet methods.

Depends on: `rollouts.lib` and `rolloutdeck.protocol`.
Invariant: modules of a capability change rows; models do not call them.
"""

from rollouts.models.artifacts import Artifact, ArtifactQuerySet, Blob
from rollouts.models.charts import ChartArrangement, QueryCurve
from rollouts.models.dumps import Dump, DumpQuerySet, Segment
from rollouts.models.external_accounts import ExternalAccount
from rollouts.models.findings import EvidenceItem, Finding, FindingQuerySet
from rollouts.models.forgotten import ForgottenPrompt, ForgottenPromptQuerySet
from rollouts.models.guidance import GuidanceVersion
from rollouts.models.labels import (
    FLAG_NAME,
    FLAG_PREFIX,
    NOT_BLIND,
    OK_ANSWER,
    REVIEW_NAME,
    BlindQueues,
    Label,
    LabelAction,
    LabelChange,
    LabelQuerySet,
    Rubric,
    get_flag_name,
)
from rollouts.models.metrics import Block, MetricRow, Series
from rollouts.models.pins import Binding, Entry, Pin, Replay, ReplayPlan, Revision, StepPrompts
from rollouts.models.projects import AuditEntry, Membership, Project, ProjectQuerySet, default_reasons
from rollouts.models.queues import (
    ItemDecision,
    Queue,
    QueueDraft,
    QueueItem,
    QueueQuerySet,
    QueueSlot,
    QueueSlotQuerySet,
    QueueStep,
)
from rollouts.models.rescores import Rescore, RescoreBlock, RescoreQuerySet, build_rescore_column
from rollouts.models.retention import RetentionPolicy
from rollouts.models.runs import (
    COLOUR_COUNT,
    MAX_TIMED_STEPS,
    SILENT_AFTER,
    SILENT_AFTER_STEPS,
    Attempt,
    AttemptContext,
    LaunchProcess,
    Run,
    RunAlias,
    RunDiskUsage,
    RunQuerySet,
    compute_median_gap,
)
from rollouts.models.samples import DuplicateSource, Sample, SampleQuerySet, ViewedSample
from rollouts.models.saved_views import SavedView, SavedViewQuerySet
from rollouts.models.sessions import SessionCutoff, SignInSession
from rollouts.models.sharing import SharedLink, SharedLinkQuerySet
from rollouts.models.step_totals import (
    WEIGHTED_SCORE,
    StepTotals,
    add_steps,
    add_templates,
    join_concurrent_steps,
    load_step_totals,
)
from rollouts.models.steps import (
    RANGED_COLUMNS,
    STEP_POSITION,
    Step,
    StepQuerySet,
    StepTemplate,
    format_template_id,
    get_step_position,
    parse_template_id,
)
from rollouts.models.storage import StorageLocation
from rollouts.models.tokens import Token, hash_secret

__all__ = [
    "Artifact", "ArtifactQuerySet", "Attempt", "AttemptContext", "AuditEntry", "Binding", "BlindQueues", "Blob",
    "Block", "COLOUR_COUNT", "ChartArrangement", "Dump", "DumpQuerySet", "DuplicateSource", "Entry", "EvidenceItem",
    "ExternalAccount", "FLAG_NAME", "FLAG_PREFIX", "Finding", "FindingQuerySet", "ForgottenPrompt",
    "ForgottenPromptQuerySet", "GuidanceVersion", "ItemDecision", "Label", "LabelAction", "LabelChange",
    "LabelQuerySet", "LaunchProcess", "MAX_TIMED_STEPS", "Membership", "MetricRow", "NOT_BLIND", "OK_ANSWER", "Pin",
    "Project", "ProjectQuerySet", "QueryCurve", "Queue", "QueueDraft", "QueueItem", "QueueQuerySet", "QueueSlot",
    "QueueSlotQuerySet", "QueueStep", "RANGED_COLUMNS", "REVIEW_NAME", "Replay", "ReplayPlan", "Rescore",
    "RescoreBlock", "RescoreQuerySet", "RetentionPolicy", "Revision", "Rubric", "Run", "RunAlias", "RunDiskUsage",
    "RunQuerySet", "SILENT_AFTER", "SILENT_AFTER_STEPS", "STEP_POSITION", "Sample", "SampleQuerySet", "SavedView",
    "SavedViewQuerySet", "Segment", "Series", "SessionCutoff", "SharedLink", "SharedLinkQuerySet", "SignInSession",
    "Step", "StepPrompts", "StepQuerySet", "StepTemplate", "StepTotals", "StorageLocation", "Token", "ViewedSample",
    "WEIGHTED_SCORE", "add_steps", "add_templates", "build_rescore_column", "compute_median_gap", "default_reasons",
    "format_template_id", "get_flag_name", "get_step_position", "hash_secret", "join_concurrent_steps",
    "load_step_totals", "parse_template_id",
]  # fmt: skip
