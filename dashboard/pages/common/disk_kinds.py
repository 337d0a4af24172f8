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


def format_bytes(size: int | None) -> str:
    """749 MB, 1.2 GB; decimal units, as disks are sold."""
    value, units = float(size or 0), ("B", "kB", "MB", "GB", "TB", "PB")
    unit = 0
    while value >= 999.5 and unit < len(units) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {units[unit]}" if value >= 99.5 or not unit else f"{value:.1f} {units[unit]}"
