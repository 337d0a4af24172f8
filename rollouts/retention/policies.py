"""Reads and changes the policy and the quota of a project. Each change writes an audit entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from rollouts.errors import InvalidInputError
from rollouts.lib import parse_choice, parse_integer
from rollouts.models import Project, RetentionPolicy
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_DAYS: Final = 36_500
MAX_NUMBER: Final = 1_000_000
MAX_BYTES: Final = 1 << 60
# {field: (smallest, largest, whether it may be empty)}
NUMBER_FIELDS: Final = {
    "every": (1, MAX_NUMBER, False),
    "groups": (1, MAX_NUMBER, False),
    "extremes": (0, MAX_NUMBER, False),
    "seed": (0, 2**31 - 1, False),
    "after_days": (0, MAX_DAYS, False),
    "raw_after_days": (0, MAX_DAYS, True),
    "max_age_days": (1, MAX_DAYS, True),
    "max_steps": (1, MAX_NUMBER, True),
    "max_bytes": (1, MAX_BYTES, True),
}
POLICY_FIELDS: Final = ("train", *NUMBER_FIELDS)


def load_policy(project: Project) -> RetentionPolicy:
    """Returns the policy of a project. Without one, returns an unsaved policy that keeps everything."""
    return RetentionPolicy.objects.filter(project=project).first() or RetentionPolicy(project=project)


@transaction.atomic
def update_policy(project: Project, by: User, values: Mapping[str, Any]) -> RetentionPolicy:
    """Changes the given fields. The next pass starts an hour later. The caller has checked that the user owns the
    project. Raises InvalidInputError."""
    if unknown := sorted(set(values) - set(POLICY_FIELDS)):
        message = _("`{name}` is not a field of a retention policy. Use: {known}.")
        raise InvalidInputError(message.format(name=unknown[0][:40], known=", ".join(POLICY_FIELDS)), unknown[0][:40])
    Project.objects.lock(project)
    policy = load_policy(project)
    before = serialize_policy(policy)
    for name, value in values.items():
        setattr(policy, name, parse_field(name, value))
    after = serialize_policy(policy)
    if before == after and policy.pk:
        return policy
    policy.updated_at, policy.updated_by = timezone.now(), by
    # The next pass starts in an hour, so that the dry run can be read first.
    policy.cursor, policy.finished_at, policy.report = 0, timezone.now(), {}
    policy.save()
    changed = {name: after[name] for name in POLICY_FIELDS if before[name] != after[name]}
    record_audit_entry(by, "retention.set", project.slug, project=project, **changed)
    return policy


def parse_field(name: str, value: Any) -> Any:
    """Raises InvalidInputError."""
    if name == "train":
        return parse_choice(value, name, RetentionPolicy.Train.values, default="all")
    low, high, may_be_empty = NUMBER_FIELDS[name]
    number = parse_integer(value, name, minimum=low, maximum=high)
    if number is None and not may_be_empty:
        raise InvalidInputError(_("`{field}` must be a whole number.").format(field=name), name)
    return number


def serialize_policy(policy: RetentionPolicy) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in POLICY_FIELDS}


@transaction.atomic
def set_quota(project: Project, by: User, quota: Any) -> Project:
    """Sets the bytes that the project may use, None for no limit. The caller has checked that the user administers the
    server. Raises InvalidInputError."""
    value = parse_integer(quota, "quota", minimum=1, maximum=MAX_BYTES)
    row = Project.objects.lock(project)
    if row.quota != value:
        record_audit_entry(by, "quota.set", row.slug, project=row, quota=value, before=row.quota)
        row.quota = value
        row.save(update_fields=["quota"])
    project.quota = value
    return project


def describe_policy(policy: RetentionPolicy) -> list[str]:
    """Returns the policy as short sentences, in the user's language."""
    days = ngettext("After {days} day", "After {days} days", policy.after_days).format(days=policy.after_days)
    sentences = []
    if policy.train == RetentionPolicy.Train.EVERY:
        sentences.append(
            _("{days}, only training steps whose number is a multiple of {k} stay.").format(days=days, k=policy.every)
        )
    if policy.train == RetentionPolicy.Train.SAMPLE:
        text = _("{days}, {n} random groups, the {m} best and the {m} worst of each training step stay.")
        sentences.append(text.format(days=days, n=policy.groups, m=policy.extremes))
    if policy.max_age_days:
        n = policy.max_age_days
        text = ngettext(
            "Training steps older than {n} day are dropped.", "Training steps older than {n} days are dropped.", n
        )
        sentences.append(text.format(n=n))
    if policy.max_steps:
        text = ngettext(
            "Each run keeps its newest training step.",
            "Each run keeps its newest {n} training steps.",
            policy.max_steps,
        )
        sentences.append(text.format(n=f"{policy.max_steps:,}"))
    if policy.max_bytes:
        sentences.append(
            _("Above {n} GB, the oldest training steps are dropped.").format(n=f"{policy.max_bytes / 1e9:g}")
        )
    if policy.raw_after_days is not None:
        text = ngettext(
            "Raw dumps older than {n} day are dropped when the sample bodies have all their rows.",
            "Raw dumps older than {n} days are dropped when the sample bodies have all their rows.",
            policy.raw_after_days,
        )
        sentences.append(text.format(n=policy.raw_after_days))
    return sentences or [_("Everything is kept.")]
