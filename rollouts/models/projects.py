"""Projects, their members and their audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_noop as N_

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User


DEFAULT_REASONS = [
    {"key": "reward-hack", "name": N_("reward hack")},
    {"key": "wrong-grader", "name": N_("wrong grader")},
    {"key": "truncated", "name": N_("truncated")},
    {"key": "repetition", "name": N_("repetition")},
    {"key": "language-mix", "name": N_("language mix")},
    {"key": "other", "name": N_("other")},
]


def default_reasons() -> list[dict[str, str]]:
    return [dict(reason) for reason in DEFAULT_REASONS]


class ProjectQuerySet(models.QuerySet["Project"]):
    def visible_to(self, user: User | AnonymousUser) -> ProjectQuerySet:
        """Projects in which the user has any role."""
        if user.is_superuser:
            return self
        return self.filter(pk__in=Membership.objects.filter(user=user.pk).values("project"))

    def load_with_roles(self, user: User | AnonymousUser) -> dict[Project, str]:
        """The projects by slug, with the user's role in each: empty if the user is not a member. Makes one query."""
        role = Membership.objects.filter(project=models.OuterRef("pk"), user=user.pk).values("role")
        rows = self.annotate(own_role=models.Subquery(role)).order_by("slug")
        return {
            row: Membership.Role.OWNER if user.is_superuser else getattr(row, "own_role", None) or "" for row in rows
        }

    def lock(self, project: Project) -> Project:
        """Returns the locked row. To avoid deadlocks, every change of plans or pins takes this lock first."""
        return self.select_for_update(no_key=True).get(pk=project.pk)


class Project(models.Model):
    """Owns runs, members, tokens, plans and rules. Created by a user, by `token create`, or by
    ingest with the local token of `up`, see `project_for_ingest`."""

    slug = models.SlugField(max_length=80, unique=True, allow_unicode=True)
    reasons = models.JSONField(default=default_reasons)
    correct = models.CharField(max_length=200, blank=True, default="", help_text="rule in the query language")
    rule = models.PositiveIntegerField(default=0, help_text="number of the rule; increases with each change")
    judging_until = models.DateTimeField(null=True, blank=True, help_text="lease of the worker that applies the rule")
    quota = models.PositiveBigIntegerField(null=True, blank=True, help_text="bytes, null for no limit")
    loosened = models.JSONField(default=dict, blank=True, help_text="overridden checks, {fact: {note, user, at}}")
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar = ProjectQuerySet.as_manager()

    def __str__(self) -> str:
        return self.slug

    @property
    def image_owner(self) -> str:
        """The name under which `rollouts/storage` stores the images of the project's findings."""
        return f"project-{self.pk}"

    def role_of(self, user: User | AnonymousUser) -> str:
        """Returns the user's role, empty if the user is not a member."""
        if user.is_superuser:
            return Membership.Role.OWNER
        return self.memberships.filter(user=user.pk).values_list("role", flat=True).first() or ""


class Membership(models.Model):
    class Role(models.TextChoices):
        VIEWER = "viewer"
        ANNOTATOR = "annotator"
        MAINTAINER = "maintainer"
        OWNER = "owner"

    project = models.ForeignKey(Project, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=12, choices=Role.choices, default=Role.VIEWER)
    # With a group, `role` is the higher one of these two.
    group_role = models.CharField(max_length=12, blank=True, default="", help_text="given by a group of the user")
    manual_role = models.CharField(max_length=12, blank=True, default="", help_text="given by a person, if a group too")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "user"], name="one_role_per_member")]

    def __str__(self) -> str:
        return f"{self.user} {self.role} of {self.project}"

    @property
    def own_role(self) -> str:
        """The role that a person gave, empty if only a group gives one."""
        return self.manual_role if self.group_role else self.role


class AuditEntry(models.Model):
    """An action that others can look up later: withdrawn flags, deletions, changes of roles, tokens and pins."""

    at = models.DateTimeField(auto_now_add=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    project = models.ForeignKey(Project, models.SET_NULL, null=True, related_name="audit")
    verb = models.CharField(max_length=40)
    subject = models.CharField(max_length=200)
    detail = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.verb} {self.subject}"
