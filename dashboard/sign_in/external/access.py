"""Whether an account may go on: what the sign-in service said last, and asking it again when that is old.

The state is a row that all web processes share, so they ask once in five minutes and not each for itself.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any, Final

from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from dashboard.sign_in.external.accounts import PROXY_ISSUER, Identity, SignInRefusedError, find_link
from dashboard.sign_in.external.provider import ProviderError, SignInEndedError, get_openid_settings, renew
from dashboard.sign_in.sessions import end_all_sessions
from rollouts.models import ExternalAccount, Project, Token
from rollouts.projects import GroupRule, RoleChange, apply_group_roles, record_audit_entry
from rollouts.storage import is_disk_full

log = logging.getLogger(__name__)

SESSION_SOURCE: Final = "external"  # key of a session that a sign-in service started: `openid` or `proxy`
CHECK_LEASE: Final = timedelta(seconds=60)  # for the process that asks the provider; also the pause after a failure


def get_rules() -> list[GroupRule]:
    return [GroupRule(*role) for role in settings.GROUP_ROLES]


def require_access(identity: Identity) -> None:
    """Raises SignInRefusedError if no group of this person gives a role and nobody gave one by hand: then the person
    gets no account either."""
    groups, rules = set(identity.groups), get_rules()
    link = find_link(identity)
    by_hand = Q(group_role="") | ~Q(manual_role="")
    has_role = link is not None and (link.user.is_superuser or link.user.memberships.filter(by_hand).exists())
    if rules and not has_role and not any(rule.group in groups for rule in rules):
        if link:
            note_answer(link.user, identity)
        raise SignInRefusedError(explain_missing_group(list(identity.groups)))


def require_no_refusal(user: User) -> None:
    """Raises SignInRefusedError, for example if the groups give roles only in projects that do not exist."""
    if refusal := explain_refusal(ExternalAccount.objects.get(pk=user.pk)):
        raise SignInRefusedError(refusal)


def note_answer(user: User, identity: Identity, renewal: str = "") -> RoleChange:
    """Stores what the service said about the user now. A user who lost a role or all access is signed out."""
    now, rules = timezone.now(), get_rules()
    next_check_at = now + timedelta(seconds=settings.GROUP_CHECK_SECONDS)
    with transaction.atomic():
        account = ExternalAccount.objects.get_or_create(user=user)[0]
        change = apply_group_roles(user, identity.groups, rules)
        account.refresh_from_db()
        account.groups, account.renewal = list(identity.groups), renewal
        account.checked_at, account.next_check_at, account.failed_since = now, next_check_at, None
        account.ended_reason = ExternalAccount.Reason.GROUPS if rules and not change.has_access else ""
        account.save()
        if identity.email and user.email != identity.email:
            user.email = identity.email
            user.save(update_fields=["email"])
        if change.lost or account.ended_reason:
            end_all_sessions(user)
    return change


def end_access(account: ExternalAccount) -> None:
    """The service does not know the person any more: no sessions, no tokens, no roles of groups."""
    with transaction.atomic():
        apply_group_roles(account.user, (), get_rules())
        ExternalAccount.objects.filter(pk=account.pk).update(
            groups=[], renewal="", ended_reason=ExternalAccount.Reason.GONE, checked_at=timezone.now()
        )
        end_all_sessions(account.user)
    log.info("The sign-in service has ended the access of %s.", account.user)


def unlink_account(user: User, by: User | None) -> int:
    """Removes all links of the account with the roles of its groups, and ends its sessions. Returns their number."""
    with transaction.atomic():
        removed: int = SocialAccount.objects.filter(user=user).delete()[1].get("socialaccount.SocialAccount", 0)
        if removed:
            apply_group_roles(user, (), get_rules())
            ExternalAccount.objects.filter(user=user).delete()
            end_all_sessions(user)
            record_audit_entry(by, "account.unlink", user.get_username())
    return removed


def load_checked_account(user: User) -> tuple[ExternalAccount | None, bool]:
    """The account after a question to the provider, if one was due, and whether the user lost a role by it.

    Other requests do not wait for the answer.
    """
    account = ExternalAccount.objects.select_related("user").filter(pk=user.pk).first()
    now = timezone.now()
    if account is None or settings.OPENID is None or account.next_check_at > now:
        return account, False
    is_over = account.ended_reason == ExternalAccount.Reason.GONE
    if is_over or not claim_check(user, now):
        return account, False
    lost = ask_provider(account, now)
    return ExternalAccount.objects.select_related("user").get(pk=user.pk), lost


def claim_check(user: User, now: datetime) -> bool:
    """Whether this process asks the provider now. None does while the disk is full: the answer could not be stored."""
    due = ExternalAccount.objects.filter(pk=user.pk, next_check_at__lte=now)
    try:
        return bool(due.update(next_check_at=now + CHECK_LEASE))
    except OperationalError as error:
        if not is_disk_full(error):
            raise
        return False


def ask_provider(account: ExternalAccount, now: datetime) -> bool:
    """Returns whether the user lost a role."""
    links = dict(SocialAccount.objects.filter(user=account.user_id).values_list("provider", "uid"))
    subject = links.get(get_openid_settings().issuer)
    if subject is None and PROXY_ISSUER in links:
        return False  # the proxy sends the groups with each request
    try:
        if subject is None or not account.renewal:
            raise ProviderError("The provider gave no way to ask it again.")
        identity, renewal = renew(account.renewal, subject)
        if identity.subject != subject:
            raise ProviderError("The provider describes another person.")
    except SignInEndedError:
        end_access(account)
        return True
    except ProviderError as error:
        log.warning("The sign-in of %s cannot be checked: %s", account.user, error)
        failed = account.failed_since or (account.checked_at if not account.renewal else now)
        renewal = error.renewal or account.renewal
        ExternalAccount.objects.filter(pk=account.pk).update(failed_since=failed, renewal=renewal)
        return False
    return note_answer(account.user, identity, renewal).lost


def explain_refusal(account: ExternalAccount) -> str:
    """Why the account may not go on; empty if it may."""
    name = settings.OPENID.name if settings.OPENID else _("the proxy")
    if account.ended_reason == ExternalAccount.Reason.GONE:
        return _("{name} has ended this sign-in. Sign in again.").format(name=name)
    if account.ended_reason == ExternalAccount.Reason.GROUPS:
        return explain_missing_group(account.groups)
    if account.failed_since and settings.OPENID:
        hours = settings.OPENID.grace_seconds / 3600
        if timezone.now() - account.failed_since > timedelta(hours=hours):
            message = _("{name} could not confirm this sign-in for {hours} h. Sign in again.")
            return message.format(name=name, hours=f"{hours:g}")
    return ""


def explain_missing_group(groups: list[str]) -> str:
    shown = ", ".join(groups[:10]) or _("none")
    message = _("None of your groups gives access to this server. Ask an administrator. Your groups: {groups}.")
    return message.format(groups=shown)


def find_session_refusal(session: Any, user: User, proxy_name: str = "") -> str:
    """Why this session must end; empty if it may go on. `proxy_name`: whom a trusted proxy names in this request."""
    source = session.get(SESSION_SOURCE, "")
    if source == PROXY_ISSUER and not proxy_name:
        return _("The proxy in front of this server does not name you any more. Sign in there again.")
    account, lost = load_checked_account(user)
    if account is None or (not source and account.is_local_admin):
        return ""
    if refusal := explain_refusal(account):
        return refusal
    return _("Your groups have changed. Sign in again.") if lost else ""


def find_token_refusal(token: Token) -> str:
    """Why the owner's token is not valid now; empty if it is. It works again when the owner has access again."""
    if settings.OPENID is None and settings.TRUSTED_PROXY is None:
        return ""
    account = load_checked_account(token.user)[0]
    if account is None:
        return ""
    token.user = account.user  # whose rights the check may have changed
    if account.is_local_admin:
        return ""
    if explain_refusal(account):
        return (
            f"The owner of this token, {token.user.username}, has no access any more. The token works again after the "
            "owner has signed in."
        )
    project: Project | None = token.project
    if project and not project.role_of(token.user):
        return f"The owner of this token, {token.user.username}, is not a member of {project.slug} any more."
    return ""
