"""Plain builders for tests: the rows a test needs, by the verbs that really make them where there is one."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User

from rollouts.flags import bulk
from rollouts.models import Attempt, Label, Membership, Project, Run, Sample, Token, get_flag_name


def project(slug: str = "math") -> Project:
    return Project.objects.get_or_create(slug=slug)[0]


def member(of: Project, name: str, role: str) -> User:
    user = User.objects.create_user(name, password=f"{name}-password")
    Membership.objects.create(project=of, user=user, role=role)
    return user


def run(of: Project, name: str = "grpo", **fields: Any) -> Run:
    return Run.objects.create(project=of, name=name, uid=fields.pop("uid", f"uid-{of.slug}-{name}"), **fields)


def attempt(of: Run, key: str = "files") -> Attempt:
    return Attempt.objects.get_or_create(run=of, key=key, defaults={"number": of.attempts.count() + 1})[0]


def token(user: User, *scopes: str, on: Project | None = None) -> str:
    """The secret of a new token."""
    return Token.issue(user=user, name="test", scopes=list(scopes), project=on)[1]


def flag(sample: str, by: User, **options: Any) -> Label:
    """A flag that nobody can undo: the act that raised it is forgotten."""
    run = Sample.objects.select_related("step__run__project").get(pk=sample).step.run
    act = bulk.flag_samples(run, [sample], by, **options)
    if act.pk:
        act.delete()
    return Label.objects.get(sample=sample, user=by, name=get_flag_name(options.get("reason", "")))


def flag_row(sample: Sample, by: User, label: str = "bad", reason: str = "") -> Label:
    """The row of a flag alone: no count, no action, no notification."""
    return Label.objects.create(
        sample=sample.pk, step=sample.step, run=sample.step.run, user=by, author=by.get_username(),
        name=get_flag_name(reason), value=label, answer=f" {label} ",
    )  # fmt: skip
