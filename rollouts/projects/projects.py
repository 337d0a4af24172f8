"""Projects, their people and their tokens: made and changed by a person, written down in the audit log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from django.utils.text import slugify
from django.utils.translation import gettext as _

from rolloutdeck.protocol import TOKEN_SCOPES
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.lib import parse_text
from rollouts.models import Membership, Project, Token
from rollouts.projects import audit


def create_project(slug: str, by: User) -> tuple[Project, bool]:
    """The project, with `by` as its owner if it is new. Raises BadInput when the slug is none."""
    slug = parse_text(slug, "slug", most=80).strip()
    if not slug or slug != slugify(slug, allow_unicode=True):
        hint = slugify(slug, allow_unicode=True) or "math"
        said = _("`slug` can contain only lower-case letters, digits, - and _, for example {hint}.")
        raise InvalidInputError(said.format(hint=hint), "slug")
    with transaction.atomic():
        project, created = Project.objects.get_or_create(slug=slug)
        if created:
            Membership.objects.create(project=project, user=by, role=Membership.Role.OWNER)
            audit.record_audit_entry(by, "project.create", slug, project=project)
    return project, created


def set_role(project: Project, username: str, role: str, by: User) -> Membership | None:
    """Gives a person a role, or takes it away when `role` is empty; the last owner stays. Raises BadInput, NotThere."""
    user = User.objects.filter(username=parse_text(username, "user", most=150)).first()
    if user is None:
        raise NotFoundError(_("Account {name} not found. Create it first.").format(name=username), "user")
    if role and role not in Membership.Role.values:
        known = ", ".join(Membership.Role.values)
        raise InvalidInputError(_("`role` must be one of: {known}.").format(known=known), "role")
    with transaction.atomic():
        Project.objects.lock(project)
        owners = project.memberships.filter(role=Membership.Role.OWNER)
        if role != Membership.Role.OWNER and owners.filter(user=user).exists() and owners.count() == 1:
            said = _("{name} is the last owner of {project}. Add another owner first.")
            raise InvalidInputError(said.format(name=username, project=project.slug), "role")
        audit.record_audit_entry(by, "role.set", username, project=project, role=role)
        if not role:
            project.memberships.filter(user=user).delete()
            return None
        return Membership.objects.update_or_create(project=project, user=user, defaults={"role": role})[0]


def create_token(
    by: User, *, name: str, scopes: Any, project: Project | None, days: int | None = None
) -> tuple[Token, str]:
    """A token that acts as `by` within `project`, and its secret, shown once. Raises BadInput."""
    name = parse_text(name, "name", most=80).strip()
    if not name:
        raise InvalidInputError(_("`name` is required: describe what the token is for."), "name")
    token, secret = Token.issue(user=by, name=name, scopes=scope_list(scopes), project=project)
    if days is not None:
        token.expires_at = timezone.now() + timedelta(days=days)
        token.save(update_fields=["expires_at"])
    audit.record_audit_entry(by, "token.create", name, project=project, scopes=token.scopes)
    return token, secret


def scope_list(scopes: Any) -> list[str]:
    """Scopes as a list or comma-separated, in the order of `wire.TOKEN_SCOPES`. Raises InvalidInputError."""
    asked = scopes.split(",") if isinstance(scopes, str) else scopes
    if not isinstance(asked, list) or not asked or not all(isinstance(scope, str) for scope in asked):
        raise InvalidInputError(unscoped(), "scopes")
    words = {scope.strip() for scope in asked}
    if not words <= set(TOKEN_SCOPES):
        raise InvalidInputError(unscoped(), "scopes")
    return [scope for scope in TOKEN_SCOPES if scope in words]


def unscoped() -> str:
    return _("`scopes` must be one or more of: {known}.").format(known=", ".join(TOKEN_SCOPES))


def revoke_token(token: Token, by: User) -> Token:
    """Ends a token; a second call changes nothing."""
    if token.revoked_at is None:
        token.revoked_at = timezone.now()
        token.save(update_fields=["revoked_at"])
        audit.record_audit_entry(by, "token.revoke", token.name, project=token.project)
    return token
