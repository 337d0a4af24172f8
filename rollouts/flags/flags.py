"""Flags: quick marks on a sample. A flag is a label with the name `flag` or `flag.<reason>`; `bulk.py` stores them.

A flag refers to the sample's id, which is the same after a re-index, so a re-index does not copy flags.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollouts.models import BlindQueues, Label

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User


def load_flags(
    sample_ids: Sequence[str],
    *,
    withdrawn: bool = False,
    reader: User | AnonymousUser | None = None,
    blind: BlindQueues | None = None,
) -> dict[str, list[Label]]:
    """Returns the flags of each sample with their users, oldest first. Withdrawn flags only if `withdrawn` is set.
    With `reader` or their `blind` queues, those that this user may read."""
    rows = Label.objects.flags().filter(sample__in=list(sample_ids)).select_related("user")
    if reader is not None:
        rows = rows.readable_by(reader)
    if blind is not None:
        rows = rows.outside_of(blind)
    flags: dict[str, list[Label]] = defaultdict(list)
    for flag in (rows if withdrawn else rows.active()).order_by("created_at", "pk"):
        flags[flag.sample].append(flag)
    return dict(flags)
