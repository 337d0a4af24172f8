"""Projects: members, roles, accounts, tokens and the audit log.

Depends on: the models.
Invariant: an operation that changes rights or removes something writes an audit entry in the same transaction.
"""

from rollouts.projects.accounts import set_account_enabled, set_server_admin
from rollouts.projects.audit import list_audit_entries, list_audit_users, list_audit_verbs
from rollouts.projects.group_roles import ADMIN_ROLE, ALL_PROJECTS, GroupRule, RoleChange, apply_group_roles
from rollouts.projects.projects import (
    MAX_TOKEN_DAYS,
    create_project,
    create_token,
    delete_project,
    record_audit_entry,
    revoke_token,
    set_role,
)

__all__ = [
    "ADMIN_ROLE", "ALL_PROJECTS", "GroupRule", "MAX_TOKEN_DAYS", "RoleChange", "apply_group_roles", "create_project",
    "create_token", "delete_project", "list_audit_entries", "list_audit_users", "list_audit_verbs",
    "record_audit_entry", "revoke_token", "set_account_enabled", "set_role", "set_server_admin",
]  # fmt: skip
