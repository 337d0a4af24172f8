"""Roles that groups of a sign-in service give. They are next to the roles of people, and never remove one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from django.contrib.auth.models import User
from django.db import transaction

from rollouts.models import ExternalAccount, Membership, Project
from rollouts.projects.projects import ROLE_RANKS, record_audit_entry

ALL_PROJECTS = "*"
ADMIN_ROLE = "admin"  # of the server


class GroupRule(NamedTuple):
    """Members of `group` have `role` in `project`, or are server admins: then `project` is empty."""

    group: str
    project: str
    role: str


class RoleChange(NamedTuple):
    """`lost`: the user may do less than before in some project. `has_access`: a group or a person gives any role."""

    lost: bool
    has_access: bool


def apply_group_roles(user: User, groups: Iterable[str], rules: Iterable[GroupRule]) -> RoleChange:
    """Gives the user the roles of these groups, and takes the roles of groups that are not among them any more."""
    held = set(groups)
    given = [rule for rule in rules if rule.group in held]
    with transaction.atomic():
        lost = set_group_admin(user, any(rule.role == ADMIN_ROLE for rule in given))
        members = {row.project_id: row for row in user.memberships.select_for_update().select_related("project")}
        roles = find_best_roles(given)
        changed = {row.project for row in members.values() if row.group_role and row.project not in roles}
        for project in changed | set(roles):
            lost |= set_group_role(project, user, members.get(project.pk), *roles.get(project, ("", "")))
        return RoleChange(lost, bool(user.is_superuser or user.memberships.exists()))


def find_best_roles(rules: Iterable[GroupRule]) -> dict[Project, tuple[str, str]]:
    """The highest role in each project, and the group that gives it. Projects that do not exist are left out."""
    rules = [rule for rule in rules if rule.role != ADMIN_ROLE]
    named = {rule.project for rule in rules}
    projects = Project.objects.all() if ALL_PROJECTS in named else Project.objects.filter(slug__in=named)
    roles: dict[Project, tuple[str, str]] = {}
    for project in projects if rules else ():
        found = [rule for rule in rules if rule.project in (ALL_PROJECTS, project.slug)]
        best = max(found, key=lambda rule: ROLE_RANKS[rule.role])
        roles[project] = (best.role, best.group)
    return roles


def set_group_role(project: Project, user: User, member: Membership | None, role: str, group: str) -> bool:
    """Returns whether the user may do less than before."""
    if member is None:
        Membership.objects.create(project=project, user=user, role=role, group_role=role)
    elif member.group_role == role:
        return False
    before, own = (member.role, member.own_role) if member else ("", "")
    after = max(role, own, key=ROLE_RANKS.__getitem__)
    if member and not after:
        member.delete()
    elif member:
        member.role, member.group_role, member.manual_role = after, role, own if role else ""
        member.save(update_fields=["role", "group_role", "manual_role"])
    record_audit_entry(None, "role.group", user.get_username(), project=project, role=role, before=before, group=group)
    return ROLE_RANKS[after] < ROLE_RANKS[before]


def set_group_admin(user: User, is_admin: bool) -> bool:
    """Makes the user a server admin by a group, or takes this. Admins whom no group made one stay. Returns whether it
    was taken."""
    by_group = ExternalAccount.objects.filter(user=user, is_admin_by_group=True).exists()
    if (user.is_superuser and not by_group) or is_admin == user.is_superuser:
        return False
    user.is_superuser = is_admin
    user.save(update_fields=["is_superuser"])
    ExternalAccount.objects.filter(user=user).update(is_admin_by_group=is_admin)
    record_audit_entry(None, "admin.group", user.get_username(), role=ADMIN_ROLE if is_admin else "")
    return not is_admin
