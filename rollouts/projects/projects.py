"""Projects, their members, their tokens and the audit log."""

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from django.utils.text import slugify
from django.utils.translation import gettext as _

from rolloutdeck.protocol import TOKEN_SCOPES
from rollouts.errors import ConflictError, InvalidInputError, NotFoundError
from rollouts.lib import parse_text
from rollouts.models import AuditEntry, Membership, Project, Token

ROLE_RANKS = {role: rank for rank, role in enumerate(["", *Membership.Role.values])}


def record_audit_entry(
    user: User | None, verb: str, subject: str, *, project: Project | None = None, **detail: Any
) -> AuditEntry:
    """Writes one entry. `verb` is an operation such as `run.delete`, `subject` the name of its object."""
    return AuditEntry.objects.create(user=user, project=project, verb=verb, subject=subject[:200], detail=detail)


def create_project(slug: str, by: User) -> tuple[Project, bool]:
    """Returns the project and whether it is new. `by` owns a new project. Raises InvalidInputError."""
    slug = parse_text(slug, "slug", max_chars=80).strip()
    if not slug or slug != slugify(slug, allow_unicode=True):
        hint = slugify(slug, allow_unicode=True) or "math"
        message = _("The name of a project can contain only lower-case letters, digits, - and _, for example {hint}.")
        raise InvalidInputError(message.format(hint=hint), "slug")
    with transaction.atomic():
        project, created = Project.objects.get_or_create(slug=slug)
        if created:
            Membership.objects.create(project=project, user=by, role=Membership.Role.OWNER)
            record_audit_entry(by, "project.create", slug, project=project)
    return project, created


def delete_project(project: Project, by: User) -> None:
    """Deletes a project without runs and stored files, with its members, tokens, rules, findings and queues.

    Its entries stay in the audit log of the server. Raises ConflictError, NotFoundError if it is deleted already.
    """
    with transaction.atomic():
        list(project.findings.select_for_update())  # before the project, as who changes a finding locks them
        row = Project.objects.select_for_update().filter(pk=project.pk).first()  # a run that is created meanwhile waits
        if row is None:
            raise NotFoundError(_("The project {name} was deleted.").format(name=project.slug), "project")
        if reason := find_reason_to_keep(row):
            raise ConflictError(reason, "project")
        record_audit_entry(by, "project.delete", row.slug)
        keep_audit_entries(row)
        row.delete()


def find_reason_to_keep(project: Project) -> str:
    """Returns why the project cannot be deleted now, empty if it can."""
    if project.runs.filter(deleted_at=None).exists():
        return _("The project has runs. Delete them in the list of runs first.")
    if project.runs.exists() or project.blobs.exists():
        return _("The files of its deleted runs are still stored. A deleted run can be restored for a week.")
    if project.forgotten_prompts.exists():
        return _("The project has forgotten prompts. Without it they could be imported again.")
    return ""


def keep_audit_entries(project: Project) -> None:
    """Writes the name of the project into its entries, which will belong to no project."""
    entries = list(project.audit.only("detail"))
    for entry in entries:
        entry.detail = {**entry.detail, "project": project.slug}
    AuditEntry.objects.bulk_update(entries, ["detail"], batch_size=500)


def set_role(project: Project, username: str, role: str, by: User) -> Membership | None:
    """Sets a user's role, or removes the member if `role` is empty. Raises InvalidInputError, also if the user is the
    last owner, and NotFoundError."""
    user = User.objects.filter(username=parse_text(username, "user", max_chars=150)).first()
    if user is None:
        raise NotFoundError(_("Account {name} not found. Create it first.").format(name=username), "user")
    if role and role not in Membership.Role.values:
        known = ", ".join(Membership.Role.values)
        raise InvalidInputError(_("`role` must be one of: {known}.").format(known=known), "role")
    with transaction.atomic():
        Project.objects.lock(project)
        owners = project.memberships.filter(role=Membership.Role.OWNER)
        if role != Membership.Role.OWNER and owners.filter(user=user).exists() and owners.count() == 1:
            message = _("{name} is the last owner of {project}. Add another owner first.")
            raise InvalidInputError(message.format(name=username, project=project.slug), "role")
        member = project.memberships.filter(user=user).first()
        if member and member.group_role:
            return set_manual_role(member, role, by)
        record_audit_entry(by, "role.set", username, project=project, role=role)
        if not role:
            project.memberships.filter(user=user).delete()
            return None
        return Membership.objects.update_or_create(project=project, user=user, defaults={"role": role})[0]


def set_manual_role(member: Membership, role: str, by: User) -> Membership:
    """Sets the role that a person gives. Raises InvalidInputError if the group gives more, so nothing would change."""
    after = max(role, member.group_role, key=ROLE_RANKS.__getitem__)
    if role != after == member.role:
        message = _("{name} is {role} by a group of the sign-in service. Change the group there.")
        raise InvalidInputError(message.format(name=member.user.username, role=member.group_role), "role")
    member.manual_role, member.role = role, after
    member.save(update_fields=["manual_role", "role"])
    record_audit_entry(by, "role.set", member.user.username, project=member.project, role=role)
    return member


MAX_TOKEN_DAYS = 36_500


def create_token(
    by: User, *, name: str, scopes: Any, project: Project | None, days: int | None = None
) -> tuple[Token, str]:
    """Returns a token with the rights of `by` in `project`, and its secret. Raises InvalidInputError."""
    name = parse_text(name, "name", max_chars=80).strip()
    if not name:
        raise InvalidInputError(_("`name` is required: describe what the token is for."), "name")
    token, secret = Token.issue(user=by, name=name, scopes=parse_scopes(scopes), project=project)
    if days is not None:
        token.expires_at = timezone.now() + timedelta(days=days)
        token.save(update_fields=["expires_at"])
    record_audit_entry(by, "token.create", name, project=project, scopes=token.scopes)
    return token, secret


def parse_scopes(value: Any) -> list[str]:
    """Parses a list or a comma-separated string. Returns the scopes in the order of `TOKEN_SCOPES`. Raises
    InvalidInputError."""
    names = value.split(",") if isinstance(value, str) else value
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    scopes = {name.strip() for name in names} if is_list else set()
    if not scopes or not scopes <= set(TOKEN_SCOPES):
        message = _("`scopes` must be one or more of: {known}.")
        raise InvalidInputError(message.format(known=", ".join(TOKEN_SCOPES)), "scopes")
    return [scope for scope in TOKEN_SCOPES if scope in scopes]


def revoke_token(token: Token, by: User) -> Token:
    """Revokes a token. A second call changes nothing."""
    if token.revoked_at is None:
        token.revoked_at = timezone.now()
        token.save(update_fields=["revoked_at"])
        record_audit_entry(by, "token.revoke", token.name, project=token.project)
    return token
