"""Creates the rows that tests need, with the functions of the product where there are some."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User

from rollouts.flags import bulk
from rollouts.models import Attempt, Label, Membership, Project, Run, Sample, Token, get_flag_name


def project(slug: str = "math") -> Project:
    return Project.objects.get_or_create(slug=slug)[0]


def member(project: Project, name: str, role: str) -> User:
    user = User.objects.create_user(name, password=f"{name}-password")
    Membership.objects.create(project=project, user=user, role=role)
    return user


def run(project: Project, name: str = "grpo", **fields: Any) -> Run:
    return Run.objects.create(project=project, name=name, uid=fields.pop("uid", f"uid-{project.slug}-{name}"), **fields)


def attempt(run: Run, key: str = "files") -> Attempt:
    return Attempt.objects.get_or_create(run=run, key=key, defaults={"number": run.attempts.count() + 1})[0]


def token(user: User, *scopes: str, on: Project | None = None) -> str:
    """Returns the secret of a new token."""
    return Token.issue(user=user, name="test", scopes=list(scopes), project=on)[1]


def flag(sample: str, user: User, **options: Any) -> Label:
    """Creates a flag that cannot be undone, since its action is deleted."""
    run = Sample.objects.select_related("step__run__project").get(pk=sample).step.run
    act = bulk.flag_samples(run, [sample], user, **options)
    if act.pk:
        act.delete()
    return Label.objects.get(sample=sample, user=user, name=get_flag_name(options.get("reason", "")))


def flag_row(sample: Sample, user: User, label: str = "bad", reason: str = "") -> Label:
    """Creates only the row of a flag: no count, no action, no notification."""
    return Label.objects.create(
        sample=sample.pk, step=sample.step, run=sample.step.run, user=user, author=user.get_username(),
        name=get_flag_name(reason), value=label, answer=f" {label} ",
    )  # fmt: skip
