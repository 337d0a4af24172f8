"""The names of what runs take on disk."""

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rollouts.models import RunDiskUsage

NAMES = {
    "raw": N_("dumps"), "bodies": N_("sample bodies"), "artifacts": N_("artifacts"), "images": N_("images"),
    "metrics": N_("metrics"), "index": N_("index (estimated)"),
}  # fmt: skip


def list_disk_kinds() -> list[tuple[str, str]]:
    """[(kind, name)]"""
    return [(kind, _(NAMES[kind])) for kind in RunDiskUsage.KINDS]
