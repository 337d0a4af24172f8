"""What a project keeps of its training steps, and how much of the disk it may use.

Depends on: flags, findings and pins (what protects samples), indexing (verifies bodies), maintenance (compaction).
Invariant: rows never refer to a removed file. A file is removed after the commit of the rows that no longer need it.
The statistics of a step stay those of all its samples. What a pin, a flag or a finding refers to is never dropped.
"""

from rollouts.retention.apply import apply_due_policies, apply_policy, has_due_policies, start_pass
from rollouts.retention.drop import StepChangedError
from rollouts.retention.policies import (
    POLICY_FIELDS,
    describe_policy,
    load_policy,
    serialize_policy,
    set_quota,
    update_policy,
)
from rollouts.retention.quota import (
    QuotaStatus,
    check_quota,
    list_quota_statuses,
    load_quota_status,
)
from rollouts.retention.raw_dumps import delete_orphan_raw_files
from rollouts.retention.reasons import describe_raw_reason, describe_reason, describe_rule
from rollouts.retention.report import build_report, store_report
from rollouts.retention.summary import (
    DropSummary,
    load_project_drops,
    load_run_drops,
)

__all__ = [
    "POLICY_FIELDS", "DropSummary", "QuotaStatus", "StepChangedError", "apply_due_policies", "apply_policy",
    "build_report", "check_quota", "delete_orphan_raw_files", "describe_policy", "describe_raw_reason",
    "describe_reason", "describe_rule", "has_due_policies", "list_quota_statuses", "load_policy",
    "load_project_drops", "load_quota_status", "load_run_drops", "serialize_policy", "set_quota", "start_pass",
    "store_report", "update_policy",
]  # fmt: skip
