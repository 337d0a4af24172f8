"""Creates, opens and revokes shared links. Each of these writes an audit entry."""

import gzip
import secrets
from datetime import timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError, TooLargeError
from rollouts.models import Project, SharedLink, hash_secret
from rollouts.projects import record_audit_entry

EXPIRY_DAYS = (1, 7, 30, 90)
DEFAULT_DAYS = 7
MAX_CONTENT_BYTES = 8 << 20  # compressed
MAX_LINKS = 200  # valid ones of a project
USE_INTERVAL = timedelta(minutes=1)  # between two recorded uses of a link


def create_shared_link(
    project: Project, by: User, *, kind: str, title: str, html: str, days: int
) -> tuple[SharedLink, str]:
    """Returns the link and its secret. Raises InvalidInputError and TooLargeError."""
    if days not in EXPIRY_DAYS:
        message = _("`days` must be one of: {known}.")
        raise InvalidInputError(message.format(known=", ".join(map(str, EXPIRY_DAYS))), "days")
    content = gzip.compress(html.encode("utf-8", "replace"), mtime=0)
    if len(content) > MAX_CONTENT_BYTES:
        message = _("This has {size} MB; a shared link can show at most {limit} MB. Share a part of it.")
        sizes = {"size": f"{len(content) / (1 << 20):.0f}", "limit": MAX_CONTENT_BYTES >> 20}
        raise TooLargeError(message.format(**sizes), "content")
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        Project.objects.lock(project)
        if SharedLink.objects.valid().filter(project=project).count() >= MAX_LINKS:
            message = _("This project has {limit} shared links. Revoke one first.")
            raise InvalidInputError(message.format(limit=MAX_LINKS), "project")
        link = SharedLink.objects.create(
            project=project, user=by, kind=kind, title=title[:200], content=content, digest=hash_secret(secret),
            expires_at=timezone.now() + timedelta(days=days),
        )  # fmt: skip
        record_audit_entry(by, "share.create", link.title, project=project, kind=kind, days=days, link=link.pk)
    return link, secret


def open_shared_link(secret: str) -> SharedLink | None:
    """Returns the valid link with this secret. Records its use, at most once a minute."""
    link: SharedLink | None = (
        SharedLink.objects.valid().select_related("project").filter(digest=hash_secret(secret)).first()
    )
    if link is None:
        return None
    now = timezone.now()
    unrecorded = Q(used_at=None) | Q(used_at__lt=now - USE_INTERVAL)
    if SharedLink.objects.filter(unrecorded, pk=link.pk).update(used_at=now):
        record_audit_entry(None, "share.use", link.title, project=link.project, kind=link.kind, link=link.pk)
    return link


def revoke_shared_link(link: SharedLink, by: User | None) -> None:
    """`by` is None for a command on the server. Deletes the content too. A second call changes nothing."""
    with transaction.atomic():
        revoked = SharedLink.objects.filter(pk=link.pk, revoked_at=None)
        if revoked.update(revoked_at=timezone.now(), content=b""):
            record_audit_entry(by, "share.revoke", link.title, project=link.project, kind=link.kind, link=link.pk)


def delete_expired_content() -> int:
    """Returns how many links had content."""
    expired = SharedLink.objects.filter(expires_at__lte=timezone.now()).exclude(content=b"")
    return int(expired.update(content=b""))
