"""Links that show a snapshot to people without an account: create, open, revoke, expire.

Depends on: projects (the audit log).
Invariant: a link gives access to its own stored page and to nothing else; no data of the project is read for it.
"""

from rollouts.sharing.links import (
    DEFAULT_DAYS,
    EXPIRY_DAYS,
    create_shared_link,
    delete_expired_content,
    open_shared_link,
    revoke_shared_link,
)

__all__ = [
    "DEFAULT_DAYS", "EXPIRY_DAYS", "create_shared_link", "delete_expired_content", "open_shared_link",
    "revoke_shared_link",
]  # fmt: skip
