"""Creates, changes and deletes saved views."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.lib import parse_choice, parse_text
from rollouts.models import Membership, Project, SavedView
from rollouts.projects import record_audit_entry

MAX_NAME_CHARS: Final = 80
MAX_PARAMS_CHARS: Final = 8000
MAX_VIEWS: Final = 500  # of one user
# What names a sample, a position or a request, and is no part of a view.
UNSAVED_PARAMS: Final = frozenset({"sel", "start", "beyond", "export", "remember", "usual", "attempt"})
# Groups of runs that are folded or not. On an overview, `open` are sections of charts, which belong to a view.
COLLAPSE_PARAMS: Final = frozenset({"open", "shut"})


def save_view(
    owner: User, *, page: Any, name: Any, params: Any, project: Project | None = None, shared: bool = False
) -> SavedView:
    """Saves a view. It replaces the owner's view with the same name on the same page. Raises InvalidInputError."""
    page = parse_choice(page, "page", SavedView.Page.values, default="")
    if not page:
        raise InvalidInputError(_("`page` is missing."), "page")
    name, params = clean_name(name), clean_params(params, page)
    check_shared(project, shared=shared)
    same_name = SavedView.objects.filter(owner=owner, page=page, name=name, project=project)
    if SavedView.objects.filter(owner=owner).count() >= MAX_VIEWS and not same_name.exists():
        raise InvalidInputError(_("You have {count} views. Delete some first.").format(count=MAX_VIEWS), "name")
    view, _created = SavedView.objects.update_or_create(
        owner=owner, page=page, name=name, project=project, defaults={"params": params, "shared": shared}
    )
    return view


def update_view(view: SavedView, by: User, **fields: Any) -> SavedView:
    """Changes `name`, `params` or `shared`. Raises InvalidInputError, also if the owner has a view with the name."""
    if "name" in fields:
        view.name = clean_name(fields["name"])
    if "params" in fields:
        view.params = clean_params(fields["params"], view.page)
    if "shared" in fields:
        view.shared = bool(fields["shared"])
        check_shared(view.project, shared=view.shared)
    try:
        with transaction.atomic():
            # Only these columns: another user may change the others at the same time.
            view.save(update_fields=[*fields, "updated_at"])
            record_foreign_change(view, by, "view.change")
    except IntegrityError as error:
        message = _("There is a view {name} already.").format(name=view.name)
        raise InvalidInputError(message, "name") from error
    return view


@transaction.atomic
def delete_view(view: SavedView, by: User) -> None:
    record_foreign_change(view, by, "view.delete")
    view.delete()


def may_change_view(view: SavedView, user: User) -> bool:
    """The owner of the view, or of the project with which it is shared."""
    if view.owner_id == user.pk:
        return True
    return bool(view.shared and view.project and view.project.role_of(user) == Membership.Role.OWNER)


def record_foreign_change(view: SavedView, by: User, verb: str) -> None:
    if view.owner_id != by.pk and view.project:
        record_audit_entry(by, verb, view.name, project=view.project, owner=view.owner.get_username())


def check_shared(project: Project | None, *, shared: bool) -> None:
    if shared and project is None:
        raise InvalidInputError(_("Choose a project to share the view with."), "project")


def clean_name(name: Any) -> str:
    text = " ".join(parse_text(name, "name", max_chars=MAX_NAME_CHARS).split())
    if not text:
        raise InvalidInputError(_("Enter a name for the view."), "name")
    return text


def clean_params(params: Any, page: str) -> str:
    """Returns a query string without parameters that are no part of a view."""
    text = parse_text(params, "params", max_chars=MAX_PARAMS_CHARS).removeprefix("?")
    try:
        pairs = parse_qsl(text, max_num_fields=200)
    except ValueError as error:
        raise InvalidInputError(_("`params` is not a query string."), "params") from error
    dropped = UNSAVED_PARAMS | (COLLAPSE_PARAMS if page == SavedView.Page.RUNS else frozenset())
    kept = [(name, value) for name, value in pairs if name not in dropped]
    if any("\x00" in name + value for name, value in kept):
        raise InvalidInputError(_("`params` is not a query string."), "params")
    return urlencode(kept, errors="replace")
