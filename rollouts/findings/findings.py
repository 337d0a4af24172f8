"""Findings: what people saw in their runs and want others to see, kept as it was seen.

The caller has checked that the person may annotate in the finding's project, and may see what is shown.
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
from rollouts.findings import exhibits
from rollouts.findings.exhibits import Quote
from rollouts.lib import parse_multiline_text, parse_text
from rollouts.live import notify_topics
from rollouts.models import EvidenceItem, Finding, Project, Run, Sample
from rollouts.projects import record_audit_entry
from rollouts.samples import load_body

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MOST_TITLE: Final = 200
MAX_NOTE_CHARS: Final = 50_000
MAX_EVIDENCE_ITEMS: Final = 200
MAX_QUOTES: Final = 100  # of one sample
TOPIC: Final = "findings"
GONE: Final = N_("This item was removed.")


def create_finding(project: Project, by: User, *, title: Any, note: Any = "") -> Finding:
    """A new finding without exhibits. Raises BadInput."""
    row = Finding.objects.create(project=project, user=by, title=titled(title), note=noted(note, "note"))
    notify_topics(TOPIC)
    return row


@transaction.atomic
def update_finding(finding: Finding, *, title: Any = None, note: Any = None, version: int | None = None) -> Finding:
    """Another title or note; None leaves it. Raises BadInput, and Outdated when somebody else has changed either since
    `version`."""
    row = held(finding)
    if version is not None and version != row.version:
        raise OutdatedError(_("Not saved: another user changed this finding after you opened it."), "version")
    wanted = (
        row.title if title is None else titled(title),
        row.note if note is None else noted(note, "note"),
    )
    if wanted != (row.title, row.note):
        row.title, row.note = wanted
        row.version += 1
        touched(row)
    return row


@transaction.atomic
def remove_finding(finding: Finding, by: User) -> Finding:
    """Takes a finding out of the lists; it can be restored."""
    row = held(finding, removed=True)
    if row.removed_at is None:
        row.removed_at = timezone.now()
        touched(row)
        record_audit_entry(by, "finding.remove", row.title, project=row.project, finding=row.pk)
    return row


@transaction.atomic
def restore_finding(finding: Finding, by: User) -> Finding:
    row = held(finding, removed=True)
    if row.removed_at is not None:
        row.removed_at = None
        touched(row)
        record_audit_entry(by, "finding.restore", row.title, project=row.project, finding=row.pk)
    return row


def add_sample_evidence(
    finding: Finding, sample: Sample, by: User, *, quotes: Sequence[Quote] = (), words: Any = ""
) -> EvidenceItem:
    """Shows a sample with the quoted ranges. Again: what was held stays, further quotes join it. Raises BadInput."""
    return store_sample_evidence(
        finding, sample, exhibits.snapshot_sample(sample, load_body(sample), quotes), by, quotes, words
    )


@transaction.atomic
def store_sample_evidence(
    finding: Finding, sample: Sample, new: dict[str, Any], by: User, quotes: Sequence[Quote], words: Any
) -> EvidenceItem:
    """`show_sample` with what `exhibits.of_sample` made before the lock was taken."""
    if len(quotes) > MAX_QUOTES:
        raise InvalidInputError(
            _("A sample can have at most {most} quotes in a finding.").format(most=MAX_QUOTES), "quotes"
        )
    row = held(finding)
    shown = row.exhibits.filter(kind=EvidenceItem.Kind.SAMPLE, sample=sample.pk).first()
    if shown is None:
        return added(row, EvidenceItem.Kind.SAMPLE, sample.step.run, new, by, words, sample=sample.pk)
    return joined(row, shown, quotes, words)


def joined(finding: Finding, shown: EvidenceItem, quotes: Sequence[Quote], words: Any) -> EvidenceItem:
    kept = shown.shown
    further = [asdict(quote) for quote in quotes if asdict(quote) not in kept["quotes"]]
    if len(kept["quotes"]) + len(further) > MAX_QUOTES:
        raise InvalidInputError(
            _("A sample can have at most {most} quotes in a finding.").format(most=MAX_QUOTES), "quotes"
        )
    said = further_words(shown, words)
    if further or said != shown.words:
        kept["quotes"] += further
        shown.held, shown.words = json.dumps(kept), said
        shown.save(update_fields=["held", "words"])
        touched(finding)
    return shown


def further_words(shown: EvidenceItem, words: Any) -> str:
    """The exhibit's words with these after them, unless they stand there already. Raises BadInput."""
    said = noted(words, "words")
    if said in shown.words:
        return shown.words
    return noted("\n\n".join(part for part in (shown.words, said) if part), "words")


def add_query_evidence(
    finding: Finding,
    run: Run,
    by: User,
    *,
    split: str = "",
    step: int | None = None,
    step_kind: str = "",
    attempt: str = "",
    q: str = "",
    ordering: str = "score",
    words: Any = "",
) -> EvidenceItem:
    """Shows what a query finds now: how many, their figures, the first of them. Raises BadInput."""
    where: dict[str, Any] = {"split": split, "step": step, "step_kind": step_kind, "attempt": attempt}
    new = exhibits.snapshot_query(run, **where, q=q, ordering=ordering, reader=by.pk)
    return store_evidence(finding, EvidenceItem.Kind.QUERY, run, new, by, words)


def add_chart_evidence(
    finding: Finding, runs: Sequence[Run], names: Sequence[str], by: User, *, attempt: str = "current", words: Any = ""
) -> EvidenceItem:
    """Shows metrics of one run or several in one chart, as the points that there are now. Raises BadInput, NotThere."""
    new = exhibits.snapshot_charts(runs, names, attempt)
    return store_evidence(finding, EvidenceItem.Kind.CHART, runs[0], new, by, words)


@transaction.atomic
def store_evidence(
    finding: Finding, kind: EvidenceItem.Kind, run: Run, new: dict[str, Any], by: User, words: Any
) -> EvidenceItem:
    """`show_query` or `show_charts` with what `exhibits` made before the lock was taken.

    Exactly this is held once, so that a form may be sent twice; other words join those it has.
    """
    row = held(finding)
    same: EvidenceItem | None = row.exhibits.filter(kind=kind, held=json.dumps(new)).first()
    if same is None:
        return added(row, kind, run, new, by, words)
    said = further_words(same, words)
    if said != same.words:
        same.words = said
        same.save(update_fields=["words"])
        touched(row)
    return same


@transaction.atomic
def set_evidence_note(exhibit: EvidenceItem, words: Any, *, began: Any = None) -> EvidenceItem:
    """Other words beside the exhibit, by somebody who began with the words `began`; None does not ask.

    Raises BadInput, NotThere when it was taken out, and Outdated when other words stand there than `began`.
    """
    finding = held(exhibit.finding)
    row: EvidenceItem | None = finding.exhibits.filter(pk=exhibit.pk).first()
    if row is None:
        raise NotFoundError(_(GONE))
    wanted = noted(words, "words")
    if wanted == row.words:
        return row
    if began is not None and noted(began, "began") != row.words:
        raise OutdatedError(_("Not saved: another user changed this comment after you opened it."), "began")
    row.words = wanted
    row.save(update_fields=["words"])
    touched(finding)
    return row


@transaction.atomic
def move_evidence(exhibit: EvidenceItem, places: int) -> None:
    """Moves an exhibit down by so many places, up where that is negative."""
    row = held(exhibit.finding)
    order = list(row.exhibits.all())
    at = next((at for at, one in enumerate(order) if one.pk == exhibit.pk), None)
    if at is None:
        raise NotFoundError(_(GONE))
    order.insert(min(max(at + places, 0), len(order) - 1), order.pop(at))
    for place, one in enumerate(order):
        one.place = place
    EvidenceItem.objects.bulk_update(order, ["place"])
    touched(row)


@transaction.atomic
def remove_evidence(exhibit: EvidenceItem, by: User) -> None:
    row = held(exhibit.finding)
    if EvidenceItem.objects.filter(pk=exhibit.pk).delete()[0]:
        touched(row)
        record_audit_entry(
            by, "finding.take_out", f"{exhibit.kind} of {row.title}", project=row.project, finding=row.pk
        )


def held(finding: Finding, *, removed: bool = False) -> Finding:
    """The row, locked. Raises NotThere when somebody has removed the finding meanwhile, unless `removed`."""
    rows = Finding.objects.select_for_update(of=("self",), no_key=True).select_related("project")
    row: Finding = rows.get(pk=finding.pk)
    if row.removed_at is not None and not removed:
        raise NotFoundError(_("This finding was removed. Restore it first."))
    return row


def added(
    finding: Finding, kind: EvidenceItem.Kind, run: Run, new: dict[str, Any], by: User, words: Any, sample: str = ""
) -> EvidenceItem:
    figures = finding.exhibits.aggregate(count=Count("pk"), last=Max("place"))
    if figures["count"] >= MAX_EVIDENCE_ITEMS:
        raise InvalidInputError(
            _("A finding can have at most {most} items. Start a new finding.").format(most=MAX_EVIDENCE_ITEMS)
        )
    row = EvidenceItem.objects.create(
        finding=finding,
        kind=kind,
        place=0 if figures["last"] is None else figures["last"] + 1,
        run=run,
        sample=sample,
        held=json.dumps(new),
        words=noted(words, "words"),
        user=by,
    )
    touched(finding)
    return row


def touched(finding: Finding) -> None:
    """Saves the row, and tells the open pages."""
    finding.save()
    notify_topics(TOPIC)


def titled(title: Any) -> str:
    found = " ".join(parse_text(title, "title", most=MOST_TITLE).split())
    if not found:
        raise InvalidInputError(_("A finding needs a title."), "title")
    return found


def noted(note: Any, field: str) -> str:
    """A text of several lines. Raises BadInput."""
    told = "" if note is None else parse_multiline_text(note, field, most=MAX_NOTE_CHARS)
    return told.replace("\r\n", "\n").replace("\r", "\n").strip()
