"""Numbers with units, as the command line and the pages show them."""

from __future__ import annotations

BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_bytes(size: float | None) -> str:
    """Returns 749 MB or 1.2 GB: decimal units, as disks are sold. None is 0 B."""
    value, unit = float(size or 0), 0
    while value >= 999.5 and unit < len(BYTE_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {BYTE_UNITS[unit]}" if value >= 99.5 or not unit else f"{value:.1f} {BYTE_UNITS[unit]}"
