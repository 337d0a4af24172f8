"""Roles by groups and by people: the higher one counts, and each side removes only roles that it gave."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from rollouts.errors import InvalidInputError
from rollouts.models import ExternalAccount, Project
from rollouts.projects import GroupRule, RoleChange, apply_group_roles, set_role
from tests.support import builders

RULES = [
    GroupRule("ml", "math", "annotator"),
    GroupRule("ml", "missing", "owner"),
    GroupRule("leads", "*", "maintainer"),
    GroupRule("admins", "", "admin"),
]


@pytest.fixture
def mina(project: Project) -> User:
    user = User.objects.create_user("mina")
    ExternalAccount.objects.create(user=user)
    return user


def get_roles(user: User) -> dict[str, str]:
    return dict(user.memberships.values_list("project__slug", "role"))


def test_groups_and_owners_take_away_only_roles_that_they_gave(mina: User, owner: User, project: Project) -> None:
    assert apply_group_roles(mina, ["ml", "other"], RULES) == RoleChange(lost=False, has_access=True)
    assert get_roles(mina) == {"math": "annotator"}
    for role in ("viewer", ""):
        with pytest.raises(InvalidInputError, match="annotator by a group"):
            set_role(project, "mina", role, owner)
    set_role(project, "mina", "maintainer", owner)
    assert apply_group_roles(mina, [], RULES) == RoleChange(lost=False, has_access=True)
    assert get_roles(mina) == {"math": "maintainer"}
    apply_group_roles(mina, ["ml"], RULES)
    set_role(project, "mina", "", owner)
    assert get_roles(mina) == {"math": "annotator"}
    assert apply_group_roles(mina, [], RULES) == RoleChange(lost=True, has_access=False)
    assert get_roles(mina) == {}


def test_the_highest_role_of_all_groups_counts_in_each_project(mina: User) -> None:
    apply_group_roles(mina, ["ml", "leads"], RULES)
    builders.project("code")
    apply_group_roles(mina, ["ml", "leads"], RULES)
    assert get_roles(mina) == {"math": "maintainer", "code": "maintainer"}
    assert apply_group_roles(mina, ["ml"], RULES).lost
    assert get_roles(mina) == {"math": "annotator"}


def test_a_group_removes_the_admin_role_only_if_it_gave_it(mina: User) -> None:
    root = User.objects.create_superuser("root")
    ExternalAccount.objects.create(user=root)
    for groups in (["admins"], []):
        apply_group_roles(root, groups, RULES)
        apply_group_roles(mina, groups, RULES)
        assert root.is_superuser and mina.is_superuser == bool(groups)
