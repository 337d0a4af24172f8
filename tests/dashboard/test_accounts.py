"""`rolloutdeck account`: server admins, and accounts of people who left."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from rollouts.models import AuditEntry, ExternalAccount, Project
from tests.dashboard.support.api_client import ApiClient
from tests.support import builders

pytestmark = pytest.mark.django_db


def change(name: str, capsys: pytest.CaptureFixture[str], **options: str) -> str:
    call_command("account", name, **options)
    return capsys.readouterr().out


@pytest.fixture
def admin() -> User:
    return User.objects.create_superuser("admin")


def test_a_server_admin_is_made_and_ended_and_the_audit_log_has_it(
    admin: User, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    mina = builders.member(project, "mina", "annotator")
    assert change("mina", capsys) == "mina: annotator of math.\n"
    assert change("mina", capsys, admin="yes") == "mina: server admin, annotator of math.\n"
    assert ApiClient.with_token(mina, "read")("GET", "projects/").status_code == 200
    assert change("mina", capsys, admin="yes") == "mina: server admin, annotator of math.\n", "and no second entry"
    change("admin", capsys, admin="no")
    with pytest.raises(CommandError, match="mina is the last server admin"):
        change("mina", capsys, admin="no")
    assert list(User.objects.filter(is_superuser=True)) == [mina]
    entries = AuditEntry.objects.filter(verb="admin.set").order_by("pk").values_list("subject", "detail__role")
    assert list(entries) == [("mina", "admin"), ("admin", "")]


def test_an_admin_by_a_group_stays_one_without_the_group(admin: User, capsys: pytest.CaptureFixture[str]) -> None:
    mina = User.objects.create_superuser("mina")
    ExternalAccount.objects.create(user=mina, is_admin_by_group=True)
    assert "server admin" in change("mina", capsys, admin="yes")
    assert ExternalAccount.objects.get().is_local_admin
    assert AuditEntry.objects.get().subject == "mina"


def test_an_admin_by_a_group_is_not_the_last_one(admin: User, capsys: pytest.CaptureFixture[str]) -> None:
    ExternalAccount.objects.create(user=User.objects.create_superuser("mina"), is_admin_by_group=True)
    with pytest.raises(CommandError, match="admin is the last server admin"):
        change("admin", capsys, admin="no")


def test_only_server_admins_read_the_audit_log_of_the_server(
    admin: User, project: Project, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    change("olga", capsys, admin="yes")
    change("olga", capsys, admin="no")
    client = Client()
    client.force_login(owner)
    assert client.get("/audit/?server=1").status_code == 404
    client.force_login(admin)
    page = client.get("/audit/?server=1&action=admin.set").content.decode()
    assert page.count("<td>changed a server admin</td>") == 2 and "Audit log of the server" in page
    assert 'href="/audit/?server=1"' in client.get("/settings/").content.decode()


def test_a_disabled_account_can_do_nothing_until_it_is_enabled(
    admin: User, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    mina = builders.member(project, "mina", "annotator")
    api, client = ApiClient.with_token(mina, "read"), Client()
    client.force_login(mina)
    assert client.get("/").status_code == api("GET", "runs/").status_code == 200
    assert "The account is disabled" in change("mina", capsys, enabled="no")
    assert client.get("/").status_code == 302 and api("GET", "runs/").status_code == 401
    assert "disabled" not in change("mina", capsys, enabled="yes")
    assert client.get("/").status_code == 302, "sessions have ended"
    assert api("GET", "runs/").status_code == 200
    assert list(AuditEntry.objects.order_by("pk").values_list("verb", flat=True)[:2]) == [
        "account.disable", "account.enable",
    ]  # fmt: skip


def test_the_last_admin_cannot_be_disabled(admin: User, capsys: pytest.CaptureFixture[str]) -> None:
    mina = User.objects.create_superuser("mina")
    change("mina", capsys, enabled="no")
    with pytest.raises(CommandError, match="admin is the last server admin"):
        change("admin", capsys, enabled="no", admin="no")
    admin.refresh_from_db()
    assert admin.is_active and admin.is_superuser
    change("mina", capsys, admin="no")  # a disabled admin is not the last one
    mina.refresh_from_db()
    assert not mina.is_superuser
