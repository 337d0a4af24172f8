"""The settings of sign-in: which values are accepted, and the messages of wrong ones."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured

from dashboard import sign_in_settings
from dashboard.sign_in_settings import (
    parse_group_roles,
    read_check_seconds,
    read_openid_settings,
    read_proxy_settings,
)
from rollouts.models import Membership
from rollouts.projects import ADMIN_ROLE

OIDC = {"ROLLOUTDECK_OIDC_ISSUER": "https://id.acme.org/realms/ml/", "ROLLOUTDECK_OIDC_CLIENT_ID": "deck"}
PROXY = {"ROLLOUTDECK_TRUSTED_PROXY": "10.0.0.5, 10.1.0.0/16 ::1"}


def read_all_settings(values: dict[str, str]) -> tuple[object, ...]:
    return tuple(
        reader(lambda name, default: values.get(name, default))
        for reader in (read_openid_settings, read_proxy_settings, read_check_seconds)
    )


def test_all_is_off_by_default() -> None:
    assert read_all_settings({}) == (None, None, 300) and parse_group_roles("") == ()


def test_the_roles_are_those_of_memberships() -> None:
    assert list(sign_in_settings.ROLES) == Membership.Role.values and sign_in_settings.ADMIN == ADMIN_ROLE


def test_missing_settings_have_defaults() -> None:
    found = read_openid_settings(lambda name, default: OIDC.get(name, default))
    assert found is not None and found.issuer == "https://id.acme.org/realms/ml" and found.name == "id.acme.org"
    assert (found.groups_claim, found.grace_seconds) == ("groups", 12 * 3600)
    proxy = read_proxy_settings(lambda name, default: PROXY.get(name, default))
    assert proxy is not None and proxy.headers == {b"remote-user", b"remote-email", b"remote-groups"}
    assert [proxy.trusts(peer) for peer in ("10.0.0.5", "10.1.2.3", "::1", "10.0.0.6", "unix")] == [True] * 3 + [
        False
    ] * 2


def test_groups_give_roles() -> None:
    text = "ml-team=math:annotator, /a/b=c=*:maintainer,admins=admin"
    assert parse_group_roles(text) == (
        ("ml-team", "math", "annotator"),
        ("/a/b=c", "*", "maintainer"),
        ("admins", "", "admin"),
    )


@pytest.mark.parametrize(
    "text", ["ml", "ml=", "=admin", "ml=math", "ml=math:", "ml=:viewer", "ml=math:boss", "ml:viewer"]
)
def test_a_wrong_rule_is_named_with_an_example(text: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"is not group=project:role.*Example: ml-team=math:maintainer"):
        parse_group_roles(f"a=admin,{text}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ROLLOUTDECK_OIDC_ISSUER": "http://id.acme.org"}, "must be an https URL"),
        ({"ROLLOUTDECK_OIDC_ISSUER": "id.acme.org"}, "must be an https URL"),
        ({"ROLLOUTDECK_OIDC_CLIENT_ID": ""}, "needs ROLLOUTDECK_OIDC_CLIENT_ID"),
        ({"ROLLOUTDECK_GROUP_CHECK_MINUTES": "soon"}, "must be a number above 0, not 'soon'"),
        ({"ROLLOUTDECK_OIDC_GRACE_HOURS": "0"}, "ROLLOUTDECK_OIDC_GRACE_HOURS must be a number"),
        ({"ROLLOUTDECK_TRUSTED_PROXY": "proxy.acme.org"}, "no IP address or network"),
        ({"ROLLOUTDECK_TRUSTED_PROXY": "10.0.0.5/24"}, "has host bits set"),
        ({"ROLLOUTDECK_TRUSTED_PROXY": "0.0.0.0/0"}, "let everybody be any user"),
        ({"ROLLOUTDECK_USER_HEADER": "Remote_User"}, "only letters, digits and -"),
        ({"ROLLOUTDECK_USER_HEADER": "Remote-Groups"}, "three different headers"),
    ],
)
def test_a_wrong_setting_says_what_to_write(change: dict[str, str], message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=message):
        read_all_settings(OIDC | PROXY | change)
