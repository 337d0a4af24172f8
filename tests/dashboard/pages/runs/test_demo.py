"""The button of an empty server that loads the demo data."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Project


@pytest.mark.django_db(transaction=True)
def test_the_button_of_an_empty_server_creates_the_project(client: Client) -> None:
    user = User.objects.create_user("new")
    client.force_login(user)
    assert "Load demo data" in client.get("/").content.decode()
    page = client.post("/demo/", follow=True).content.decode()
    assert Project.objects.get(slug="demo").role_of(user) == "owner"
    assert "Its runs appear here within a minute." in page or "workers cannot be reached" in page
