"""Which account a person of a sign-in service has.

It is found by issuer and subject, as allauth stores them. A name or an e-mail address never leads to an account: at
many services people choose them.
"""

from __future__ import annotations

import re
from itertools import count
from typing import Final, NamedTuple

from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from rollouts.projects import record_audit_entry

PROXY_ISSUER: Final = "proxy"  # of people whom a trusted proxy names; subjects are the names
MAX_NAME_CHARS: Final = 150
MAX_SUBJECT_CHARS: Final = 191
MAX_GROUPS: Final = 1000  # of a person
FORBIDDEN_IN_NAMES: Final = re.compile(r"[^\w.@+-]+")


class SignInRefusedError(Exception):
    """The person is known, but may not sign in. The message says why and what to do."""


class Identity(NamedTuple):
    """A person at a sign-in service. `name` and `email` are for display only."""

    issuer: str
    subject: str
    name: str
    email: str
    groups: tuple[str, ...]


def find_link(identity: Identity) -> SocialAccount | None:
    rows = SocialAccount.objects.select_related("user")
    return rows.filter(provider=identity.issuer, uid=identity.subject).first()


def find_or_create_user(identity: Identity) -> User:
    """The account of this person, a new one at the first sign-in. Raises SignInRefusedError."""
    link = find_link(identity)
    if link is None:
        try:
            with transaction.atomic():
                return create_user(identity)
        except IntegrityError:  # another request of the same person was faster
            link = find_link(identity)
            if link is None:
                raise
    if not link.user.is_active:
        raise SignInRefusedError(_("Your account is switched off. Ask an administrator of this server."))
    user: User = link.user
    return user


def create_user(identity: Identity) -> User:
    """Raises SignInRefusedError if an account that the service did not create has this name."""
    name = clean_name(identity)
    taken = User.objects.filter(username__iexact=name).first()
    if taken and not SocialAccount.objects.filter(user=taken).exists():
        message = _(
            "An account {name} exists already, and it is not linked to your sign-in. If it is yours, sign in to it as "
            "before and link it in Settings, or ask an administrator to link it."
        )
        raise SignInRefusedError(message.format(name=taken.username))
    user = User(username=find_free_name(name), email=identity.email)
    user.set_unusable_password()
    user.save()
    SocialAccount.objects.create(user=user, provider=identity.issuer, uid=identity.subject)
    record_audit_entry(user, "account.create", user.username, issuer=identity.issuer)
    return user


def clean_name(identity: Identity) -> str:
    wanted = identity.name or identity.email or identity.subject
    name = FORBIDDEN_IN_NAMES.sub("-", User.normalize_username(wanted)).strip("-")
    return name[: MAX_NAME_CHARS - 6] or "user"


def find_free_name(name: str) -> str:
    """The name, with a number if another person of the service has it."""
    candidates = (f"{name}-{number}" if number > 1 else name for number in count(1))
    return next(name for name in candidates if not User.objects.filter(username__iexact=name).exists())


def link_account(user: User, identity: Identity, by: User | None) -> None:
    """From now on this person of the service signs in as `user`. Raises SignInRefusedError."""
    with transaction.atomic():
        other = find_link(identity)
        if other and other.user_id != user.pk:
            message = _("This sign-in already belongs to the account {name}.")
            raise SignInRefusedError(message.format(name=other.user.username))
        if other:
            return
        if SocialAccount.objects.filter(user=user, provider=identity.issuer).exists():
            message = _("The account {name} is already linked to another person of this service.")
            raise SignInRefusedError(message.format(name=user.username))
        SocialAccount.objects.create(user=user, provider=identity.issuer, uid=identity.subject)
        record_audit_entry(by, "account.link", user.username, issuer=identity.issuer)


def list_links(user: User) -> list[tuple[str, str]]:
    """Issuer and subject of each person who signs in as `user`."""
    return list(SocialAccount.objects.filter(user=user).order_by("pk").values_list("provider", "uid"))
