"""Accounts of the server: who is a server admin, and who may sign in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.contrib.auth.models import User
from django.db import transaction
from django.utils.translation import gettext as _

from rollouts.errors import ConflictError
from rollouts.models import ExternalAccount
from rollouts.projects.group_roles import ADMIN_ROLE
from rollouts.projects.projects import record_audit_entry


def set_server_admin(user: User, is_admin: bool) -> bool:
    """Makes the user a server admin who needs no group of a sign-in service, or takes this. A group gives it again at
    the next sign-in. Returns whether something changed. Raises ConflictError for the last one."""
    by_group = ExternalAccount.objects.filter(user=user, is_admin_by_group=True)
    with keep_an_admin(user):
        was_admin_by_group = bool(by_group.update(is_admin_by_group=False))
        if user.is_superuser == is_admin and not was_admin_by_group:
            return False
        user.is_superuser = is_admin
        user.save(update_fields=["is_superuser"])
        record_audit_entry(None, "admin.set", user.get_username(), role=ADMIN_ROLE if is_admin else "")
    return True


def set_account_enabled(user: User, is_enabled: bool) -> bool:
    """Lets the user sign in, or refuses passwords, links, sessions and tokens of the account. Labels, findings and
    roles stay. Returns whether something changed. Raises ConflictError for the last server admin."""
    with keep_an_admin(user):
        if user.is_active == is_enabled:
            return False
        user.is_active = is_enabled
        user.save(update_fields=["is_active"])
        record_audit_entry(None, "account.enable" if is_enabled else "account.disable", user.get_username())
    return True


@contextmanager
def keep_an_admin(user: User) -> Iterator[None]:
    """Changes an account in a transaction. Raises ConflictError, and changes nothing, if no admin could sign in. One by
    a group does not count: the group can end."""
    with transaction.atomic():
        admins = User.objects.filter(is_superuser=True, is_active=True)
        admins = admins.exclude(pk__in=ExternalAccount.objects.filter(is_admin_by_group=True).values("user"))
        had_admins = bool(list(admins.select_for_update(no_key=True)))  # so a change of another admin waits
        user.refresh_from_db()
        yield
        if had_admins and not admins.exists():
            message = _("{name} is the last server admin. Make another account one first.")
            raise ConflictError(message.format(name=user.get_username()), "user")
