"""Findings: what users discovered in their runs, with evidence items for others to see.

The caller has checked that the user may annotate in the finding's project and may see the evidence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.db.models import Count, Max
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rollouts.errors import InvalidInputError, NotFoundError, OutdatedError
from rollouts.findings.charts import snapshot_charts
from rollouts.findings.snapshots import Quote, snapshot_query, snapshot_sample
from rollouts.lib import parse_multiline_text, parse_text
from rollouts.live import notify_topics
from rollouts.models import EvidenceItem, Finding, Project, Run, Sample
from rollouts.projects import record_audit_entry
from rollouts.samples import load_body

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_TITLE_CHARS: Final = 200
MAX_NOTE_CHARS: Final = 50_000
MAX_EVIDENCE_ITEMS: Final = 200
MAX_QUOTES: Final = 100  # of one sample
TOPIC: Final = "findings"
ITEM_REMOVED_MESSAGE: Final = N_("This item was removed.")


def create_finding(project: Project, by: User, *, title: Any, note: Any = "") -> Finding:
    """Returns a new finding without evidence. Raises InvalidInputError."""
    row = Finding.objects.create(project=project, user=by, title=parse_title(title), note=parse_note(note, "note"))
    notify_topics(TOPIC)
    return row


@transaction.atomic
def update_finding(finding: Finding, *, title: Any = None, note: Any = None, version: int | None = None) -> Finding:
    """Changes the title and the note, unless they are None. Raises InvalidInputError, and OutdatedError if another user
    changed either after `version`."""
    row = lock_finding(finding)
    if version is not None and version != row.version:
        raise OutdatedError(_("Not saved: another user changed this finding after you opened it."), "version")
    before = row.title, row.note
    row.title = row.title if title is None else parse_title(title)
    row.note = row.note if note is None else parse_note(note, "note")
    if before != (row.title, row.note):
        row.version += 1
        save_finding(row)
    return row


def remove_finding(finding: Finding, by: User) -> Finding:
    """Removes a finding from the lists; it can be restored."""
    return set_removed(finding, by, removed=True)


def restore_finding(finding: Finding, by: User) -> Finding:
    return set_removed(finding, by, removed=False)


@transaction.atomic
def set_removed(finding: Finding, by: User, *, removed: bool) -> Finding:
    row = lock_finding(finding, allow_removed=True)
    if removed != (row.removed_at is not None):
        row.removed_at = timezone.now() if removed else None
        save_finding(row)
        action = "finding.remove" if removed else "finding.restore"
        record_audit_entry(by, action, row.title, project=row.project, finding=row.pk)
    return row


def add_sample_evidence(
    finding: Finding, sample: Sample, by: User, *, quotes: Sequence[Quote] = (), words: Any = ""
) -> EvidenceItem:
    """Adds a sample. If the finding has it already, adds the new quotes and words. Raises InvalidInputError."""
    snapshot = snapshot_sample(sample, load_body(sample), quotes)
    return store_sample_evidence(finding, sample, snapshot, by, quotes, words)


def add_query_evidence(finding: Finding, run: Run, by: User, *, words: Any = "", **query: Any) -> EvidenceItem:
    """Adds the present result of a query, see `snapshot_query`. Raises InvalidInputError."""
    snapshot = snapshot_query(run, **query, reader=by.pk)
    return store_evidence(finding, EvidenceItem.Kind.QUERY, run, snapshot, by, words)


def add_chart_evidence(
    finding: Finding, runs: Sequence[Run], names: Sequence[str], by: User, *, attempt: str = "current", words: Any = ""
) -> EvidenceItem:
    """Adds a chart of the present points of metrics. Raises InvalidInputError and NotFoundError."""
    snapshot = snapshot_charts(runs, names, attempt, reader=by.pk)
    return store_evidence(finding, EvidenceItem.Kind.CHART, runs[0], snapshot, by, words)


@transaction.atomic
def store_sample_evidence(
    finding: Finding, sample: Sample, snapshot: dict[str, Any], by: User, quotes: Sequence[Quote], words: Any
) -> EvidenceItem:
    """Same as `add_sample_evidence`, with a snapshot that was made before the finding is locked."""
    check_quote_count(len(quotes))
    row = lock_finding(finding)
    item: EvidenceItem | None = row.exhibits.filter(kind=EvidenceItem.Kind.SAMPLE, sample=sample.pk).first()
    if item is None:
        return create_item(row, EvidenceItem.Kind.SAMPLE, sample.step.run, snapshot, by, words, sample=sample.pk)
    stored = item.shown
    new_quotes = [quote for quote in map(asdict, quotes) if quote not in stored["quotes"]]
    check_quote_count(len(stored["quotes"]) + len(new_quotes))
    stored["quotes"] += new_quotes
    return update_item(row, item, append_comment(item, words), json.dumps(stored) if new_quotes else item.held)


@transaction.atomic
def store_evidence(
    finding: Finding, kind: EvidenceItem.Kind, run: Run, snapshot: dict[str, Any], by: User, words: Any
) -> EvidenceItem:
    """Adds a query or a chart, with a snapshot that was made before the finding is locked. If the finding has the same
    snapshot already, only adds the words, so that a form can be sent twice."""
    row = lock_finding(finding)
    item: EvidenceItem | None = row.exhibits.filter(kind=kind, held=json.dumps(snapshot)).first()
    if item is None:
        return create_item(row, kind, run, snapshot, by, words)
    return update_item(row, item, append_comment(item, words))


@transaction.atomic
def set_evidence_comment(evidence: EvidenceItem, comment: Any, *, began: Any = None) -> EvidenceItem:
    """Changes the comment of an item. `began` is the one that the user edited, None to skip the check. Raises
    InvalidInputError, NotFoundError if the item was removed, and OutdatedError if its comment is not `began`."""
    finding = lock_finding(evidence.finding)
    item: EvidenceItem | None = finding.exhibits.filter(pk=evidence.pk).first()
    if item is None:
        raise NotFoundError(_(ITEM_REMOVED_MESSAGE))
    new_comment = parse_note(comment, "words")
    if began is not None and new_comment != item.words and parse_note(began, "began") != item.words:
        raise OutdatedError(_("Not saved: another user changed this comment after you opened it."), "began")
    return update_item(finding, item, new_comment)


@transaction.atomic
def move_evidence(evidence: EvidenceItem, places: int) -> None:
    """Moves an item down by so many places, up if negative. Raises NotFoundError if it was removed."""
    finding = lock_finding(evidence.finding)
    items = list(finding.exhibits.all())
    if evidence not in items:
        raise NotFoundError(_(ITEM_REMOVED_MESSAGE))
    position = items.index(evidence)
    items.insert(min(max(position + places, 0), len(items) - 1), items.pop(position))
    for position, item in enumerate(items):
        item.place = position
    EvidenceItem.objects.bulk_update(items, ["place"])
    save_finding(finding)


@transaction.atomic
def remove_evidence(evidence: EvidenceItem, by: User) -> None:
    row = lock_finding(evidence.finding)
    if EvidenceItem.objects.filter(pk=evidence.pk).delete()[0]:
        save_finding(row)
        target = f"{evidence.kind} of {row.title}"
        record_audit_entry(by, "finding.take_out", target, project=row.project, finding=row.pk)


def lock_finding(finding: Finding, *, allow_removed: bool = False) -> Finding:
    """Returns the locked row. Raises NotFoundError if the finding was removed, unless `allow_removed`."""
    rows = Finding.objects.select_for_update(of=("self",), no_key=True).select_related("project")
    row: Finding = rows.get(pk=finding.pk)
    if row.removed_at is not None and not allow_removed:
        raise NotFoundError(_("This finding was removed. Restore it first."))
    return row


def create_item(
    finding: Finding, kind: str, run: Run, snapshot: dict[str, Any], by: User, words: Any, sample: str = ""
) -> EvidenceItem:
    items = finding.exhibits.aggregate(count=Count("pk"), last=Max("place"))
    if items["count"] >= MAX_EVIDENCE_ITEMS:
        message = _("A finding can have at most {limit} items. Start a new finding.")
        raise InvalidInputError(message.format(limit=MAX_EVIDENCE_ITEMS))
    place = 0 if items["last"] is None else items["last"] + 1
    held, words = json.dumps(snapshot), parse_note(words, "words")
    item = EvidenceItem.objects.create(
        finding=finding, kind=kind, place=place, run=run, sample=sample, held=held, words=words, user=by
    )
    save_finding(finding)
    return item


def update_item(finding: Finding, item: EvidenceItem, words: str, held: str | None = None) -> EvidenceItem:
    new = words, held or item.held
    if new != (item.words, item.held):
        item.words, item.held = new
        item.save(update_fields=["words", "held"])
        save_finding(finding)
    return item


def append_comment(item: EvidenceItem, comment: Any) -> str:
    """Returns the item's comment with this one after it, unless it has these paragraphs already: a form may be sent
    twice. Raises InvalidInputError."""
    added = parse_note(comment, "words")
    if f"\n\n{added}\n\n" in f"\n\n{item.words}\n\n":
        return item.words
    return parse_note("\n\n".join(filter(None, (item.words, added))), "words")


def check_quote_count(count: int) -> None:
    if count > MAX_QUOTES:
        message = _("A sample can have at most {limit} quotes in a finding.")
        raise InvalidInputError(message.format(limit=MAX_QUOTES), "quotes")


def save_finding(finding: Finding) -> None:
    """Saves the row and notifies open pages."""
    finding.save()
    notify_topics(TOPIC)


def parse_title(title: Any) -> str:
    text = " ".join(parse_text(title, "title", max_chars=MAX_TITLE_CHARS).split())
    if not text:
        raise InvalidInputError(_("A finding needs a title."), "title")
    return text


def parse_note(note: Any, field: str) -> str:
    """Returns a text of several lines with Unix line ends. Raises InvalidInputError."""
    text = "" if note is None else parse_multiline_text(note, field, max_chars=MAX_NOTE_CHARS)
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()
