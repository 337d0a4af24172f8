"""The trainers that load the pins of a plan, and what they can do with selected samples."""

from __future__ import annotations

from collections.abc import Collection

from django.utils.translation import gettext as _

from rolloutdeck.protocol import SELECTED_ACTIONS
from rolloutdeck.trainer_api import find_loader, get_first_step, list_selected_actions, resolve_selected_action
from rollouts.errors import InvalidInputError
from rollouts.models import Artifact, Revision


def find_first_steps(ids: Collection[int]) -> dict[int, int]:
    """Returns the first step, 0 or 1, of the trainer that loads each pin, as far as it is known."""
    formats = Artifact.objects.filter(pins__in=ids).values_list("pins", "facts__format").distinct()
    return {pin: get_first_step(format_name) for pin, format_name in formats if isinstance(format_name, str)}


def list_supported_actions(ids: Collection[int]) -> list[str]:
    """Returns what all trainers that load these pins can do with selected samples, keep first, the default second."""
    supported = [list_selected_actions(name, role) for name, role in list_roles(ids)]
    known = [actions for actions in supported if actions]
    shared = [action for action in (known[0] if known else ()) if all(action in actions for actions in known)]
    return ["keep", *shared] if known else [action for action in SELECTED_ACTIONS if action != "exclude"]


def resolve_action(on_selected: str, ids: Collection[int]) -> str:
    """Returns what the setting means for the first known trainer of these pins."""
    name, role = next(iter(list_roles(ids)), ("", ""))
    return resolve_selected_action(on_selected, name, role)


def check_selected_action(action: str, ids: Collection[int]) -> None:
    """Raises InvalidInputError if the trainer that loads one of these pins does not support the action."""
    if action in ("keep", "exclude"):
        return
    for name, role in list_roles(ids):
        supported, loader = list_selected_actions(name, role), find_loader(name)
        if loader and supported and action not in supported:
            text = _("{trainer} ({role}) cannot {action} selected samples. It supports: {supported}.")
            known = ", ".join(("keep", *supported))
            message = text.format(trainer=loader.name, role=role, action=action, supported=known)
            raise InvalidInputError(message, "on_selected")


def list_roles(ids: Collection[int]) -> list[tuple[str, str]]:
    """Returns format and role of these pins' files, each pair once, as far as the formats are known."""
    pairs = Artifact.objects.filter(pins__in=ids).values_list("facts__format", "role").order_by().distinct()
    return sorted((name, role) for name, role in pairs if isinstance(name, str) and name)


def find_plan_trainer(revision: Revision | None) -> str:
    """Returns the trainer that loads the plan's pins, empty if unknown."""
    return find_loading_trainer(list(revision.entries.values_list("pin", flat=True))) if revision else ""


def find_loading_trainer(ids: Collection[int]) -> str:
    """Returns the trainer that loads these pins, empty if unknown."""
    return next((trainer.name for name in list_formats(ids) if (trainer := find_loader(name))), "")


def has_unknown_trainer(revision: Revision) -> bool:
    """Whether the pins have a format and no known trainer loads it."""
    ids = list(revision.entries.values_list("pin", flat=True))
    return bool(list_formats(ids)) and not find_loading_trainer(ids)


def list_formats(ids: Collection[int]) -> list[str]:
    """Returns the reported formats of these pins' files."""
    names = Artifact.objects.filter(pins__in=ids).values_list("facts__format", flat=True).distinct()
    return [name for name in names if isinstance(name, str) and name]
