"""What people made of samples: evidence items, shared links, saved views, and texts that only they can change."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from django.db import transaction
from django.db.models import Q

from rollouts.forgetting.pending import add_pending
from rollouts.forgetting.texts import SearchText
from rollouts.live import notify_topics
from rollouts.models import (
    AttemptContext,
    AuditEntry,
    ChartArrangement,
    EvidenceItem,
    Finding,
    ForgottenPrompt,
    GuidanceVersion,
    ItemDecision,
    Label,
    LabelAction,
    LabelChange,
    Pin,
    Project,
    Queue,
    QueueDraft,
    QueueItem,
    RetentionPolicy,
    Rubric,
    Run,
    Sample,
    SavedView,
    SharedLink,
)
from rollouts.sharing import revoke_shared_link
from rollouts.storage import get_image_key

MIN_TAIL_CHARS = 24  # a shorter end of a response is found where it says something else
IDS_PER_QUERY = 500
TAG = re.compile(r"<[^>]*>")
KEPT_FIELDS = ("sample", "run", "split", "step_kind", "step", "attempt")  # of a forgotten snapshot, for its link


@dataclass(slots=True)
class EvidenceMatches:
    """`items` are whole evidence items to remove, `rows` those of which rows of a query are removed. `notes` say where
    people wrote the text: nobody else can decide what remains of their sentences."""

    items: list[EvidenceItem] = field(default_factory=list)
    rows: list[EvidenceItem] = field(default_factory=list)
    links: list[SharedLink] = field(default_factory=list)
    views: list[SavedView] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_evidence(
    project: Project, keys: Collection[str], samples: Collection[str], text: SearchText | None
) -> EvidenceMatches:
    """`samples` are the ids of the samples that are removed. Without a text, only what names them is found."""
    result = EvidenceMatches()
    tails = load_tails(samples)
    for item in EvidenceItem.objects.filter(finding__project=project).iterator():
        shown = item.shown
        if shown.get("forgotten"):
            continue
        if item.sample in samples or shown.get("prompt_key") in keys or (text and text.is_in(without_rows(shown))):
            result.items.append(item)
            tails |= list_tails([shown.get("response", "")[-200:]])
        elif any(is_removed_row(row, keys, samples, text) for row in shown.get("rows", ())):
            result.rows.append(item)
    for link in SharedLink.objects.filter(project=project).exclude(content=b"").iterator():
        content = " ".join(html.unescape(TAG.sub("", link.html)).split())
        if (text and text.is_in(content)) or any(tail in content for tail in tails):
            result.links.append(link)
    if text:
        views = SavedView.objects.filter(Q(project=project) | Q(project=None))
        result.views = [view for view in views if text.is_in(unquote_plus(view.params)) or text.is_in(view.name)]
        result.notes = [f"{place}: {name}" for place, name, value in iterate_notes(project) if text.is_in(value)]
    return result


def load_tails(samples: Collection[str]) -> set[str]:
    ids, tails = sorted(samples), set[str]()
    for start in range(0, len(ids), IDS_PER_QUERY):
        part = Sample.objects.filter(pk__in=ids[start : start + IDS_PER_QUERY])
        tails |= list_tails(part.values_list("tail", flat=True))
    return tails


def list_tails(texts: Any) -> set[str]:
    tails = {" ".join(str(text).split()) for text in texts}
    return {tail for tail in tails if len(tail) >= MIN_TAIL_CHARS}


def without_rows(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if name != "rows"}


def is_removed_row(
    row: dict[str, Any], keys: Collection[str], samples: Collection[str], text: SearchText | None
) -> bool:
    return row.get("id") in samples or row.get("prompt_key") in keys or bool(text and text.is_in(row))


def iterate_notes(project: Project) -> Iterator[tuple[str, str, Any]]:
    """Yields (kind, name without a text, value) of everything that people and programs wrote in their own words."""
    yield "correctness rule of", "the project", project.correct
    yield "flag reasons of", "the project", project.reasons
    for board in ChartArrangement.objects.filter(project=project):
        yield "charts of", "the project", board.queries
    for policy in RetentionPolicy.objects.filter(project=project):
        yield "retention report of", "the project", policy.report
    for finding in Finding.objects.filter(project=project):
        yield "finding", str(finding.pk), [finding.title, finding.note]
    for item in EvidenceItem.objects.filter(finding__project=project).defer("held"):
        yield "comment in finding", str(item.finding_id), item.words
    for pin in Pin.objects.filter(project=project):
        yield "note of pin", str(pin.pk), pin.note
    for run in Run.objects.filter(project=project):
        yield "name, tags or configuration of run", run.uid, [run.name, run.tags, run.config, run.facts]
    for context in AttemptContext.objects.filter(attempt__run__project=project).select_related("attempt__run"):
        yield "context of run", context.attempt.run.uid, [context.facts, context.patch]
    for guidance in GuidanceVersion.objects.filter(project=project):
        yield "guidance rules", str(guidance.number), guidance.rules
    for rubric in Rubric.objects.filter(project=project):
        yield "rubric", str(rubric.number), [rubric.questions, rubric.guidelines]
    for label in Label.objects.filter(run__project=project).iterator():
        yield "flag" if label.is_flag else "label", str(label.pk), [label.value, label.rationale, label.author]
    for change in LabelChange.objects.filter(label__run__project=project).iterator():
        yield "history of label", str(change.label_id), [change.value, change.rationale]
    for action in LabelAction.objects.filter(run__project=project).iterator():
        yield "label action", str(action.pk), [action.description, action.before]
    for queue in Queue.objects.filter(project=project):
        yield "review queue", str(queue.pk), [queue.name, queue.q]
    of_queues = {"item__queue__project": project}
    for draft in QueueDraft.objects.filter(**of_queues).iterator():
        yield "draft of an answer to review item", str(draft.item_id), draft.answers
    for decision in ItemDecision.objects.filter(**of_queues).iterator():
        yield "decision about review item", str(decision.item_id), [decision.value, decision.reason]
    for known in QueueItem.objects.filter(queue__project=project, gold__isnull=False).iterator():
        yield "known answers to review item", str(known.pk), known.gold
    for link in SharedLink.objects.filter(project=project).defer("content"):
        yield "title of shared link", str(link.pk), link.title
    for entry in AuditEntry.objects.filter(project=project).iterator():
        yield "audit entry", str(entry.pk), [entry.subject, entry.detail]


def remove_evidence(
    forgotten: ForgottenPrompt, found: EvidenceMatches, samples: Collection[str], text: SearchText | None
) -> None:
    """Empties evidence items, revokes shared links and deletes saved views. Links to findings and items remain."""
    keys = forgotten.all_keys()
    with transaction.atomic():
        for item in found.items:
            shown = item.shown
            owner = forgotten.project.image_owner
            digests = [image["sha256"] for image in shown.get("images", []) if image.get("sha256")]
            add_pending(forgotten, [get_image_key(owner, digest) for digest in digests])
            held = {"forgotten": True, **{name: shown[name] for name in KEPT_FIELDS if name in shown}}
            EvidenceItem.objects.filter(pk=item.pk).update(held=json.dumps(held))
        for item in found.rows:
            shown = item.shown
            shown["rows"] = [row for row in shown["rows"] if not is_removed_row(row, keys, samples, text)]
            EvidenceItem.objects.filter(pk=item.pk).update(held=json.dumps(shown))
        for link in found.links:
            revoke_shared_link(link, None)
        SavedView.objects.filter(pk__in=[view.pk for view in found.views]).delete()
        notify_topics("findings")
