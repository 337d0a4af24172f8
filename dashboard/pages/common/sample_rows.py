"""The rows of a sample table: what each shows, and the columns that have values."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Count
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from rollouts.models import BlindQueues, Label, Sample
from rollouts.query import Snippet
from rollouts.review import load_viewed_marks
from rollouts.samples import TEXT_PROPERTY_BITS

# Text property, its mark in the table, its colour class, its description.
MARKS = (
    ("trunc?", N_("TRUNC?"), "trunc", N_("looks cut off; this run does not record why generation ended")),
    ("repetition", N_("REP"), "partial", N_("ends in repetition")),
    ("language-mix", N_("LANG"), "partial", N_("uses a writing system that the prompt does not use")),
    ("garbled", N_("GARBLED"), "bad", N_("damaged characters, wrong encoding or a jumble of scripts")),
    ("empty", N_("EMPTY"), "bad", N_("empty response")),
    ("duplicate", N_("DUP"), "plain", N_("same text as another response in the group")),
    ("no-marker", N_("NO ANSWER"), "bad", N_("no answer marker")),
    ("filtered", N_("FILTERED"), "plain", N_("dropped by the trainer's filter, not trained on")),
    ("guided", N_("RULE"), "plain", N_("selected by a guidance rule in the training")),
    (
        "no-text",
        N_("NO TEXT"),
        "plain",
        N_("the text was not recorded; of recorded tokens it is shown with the tokenizer"),
    ),
)

FIRST_PAGE_ROWS, NEXT_PAGE_ROWS = 50, 200
MAX_GROUP_NAME_CHARS = 6
# Hashes and UUIDs.
GENERATED_NAME_PATTERN = re.compile(r"[0-9A-Za-z]{16,}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
SAMPLE_COLUMNS = ("group", "n", "adv", "len", "staleness", "duration", "source", "expected")


@dataclass(slots=True)
class SampleRow:
    """`snippet` is set if a query searches the text. `viewed_label` is empty if the user has not viewed the sample.
    `is_ok`: the user has marked it as OK. `names_rules`: its guidance rules are shown next to the marks."""

    sample: Sample
    flags: int = 0
    viewed_label: str = ""
    is_ok: bool = False
    snippet: Snippet | None = None
    names_rules: bool = False

    @property
    def group(self) -> str:
        """The part of the name that fits: the start of a generated name, the end of any other."""
        name = self.sample.group
        if len(name) <= MAX_GROUP_NAME_CHARS:
            return name
        if GENERATED_NAME_PATTERN.fullmatch(name):
            return name[:MAX_GROUP_NAME_CHARS]
        return f"…{name[1 - MAX_GROUP_NAME_CHARS :]}"

    @property
    def length(self) -> str:
        """In tokens if they were recorded, else in characters; a dash if the text was not recorded either."""
        if self.sample.tokens is not None:
            return f"{self.sample.tokens:,}"
        return f"{self.sample.chars:,}" if has_text(self.sample) else "–"

    @property
    def has_answer_mismatch(self) -> bool:
        return bool(self.sample.correct and self.sample.facets & TEXT_PROPERTY_BITS["other-answer"])

    def marks(self) -> list[tuple[str, str, str]]:
        """[(colour class, description, mark)], the flags first: people set them."""
        marks = []
        if self.flags:
            description = ngettext("{count} flag", "{count} flags", self.flags).format(count=self.flags)
            marks.append(("flag", description, f"⚑ {self.flags}" if self.flags > 1 else "⚑"))
        if self.has_answer_mismatch:
            marks.append(("bad", _("counted as correct, but the last answer is not the ground truth"), _("MISMATCH")))
        if self.sample.truncated:
            marks.append(("trunc", _("stopped by the length limit"), _("TRUNC")))
        marks += [
            (kind, _(description), _(mark))
            for name, mark, kind, description in MARKS
            if self.sample.facets & TEXT_PROPERTY_BITS[name] and not (name == "guided" and self.names_rules)
        ]
        if not self.sample.final:
            marks.append(("plain", _("not the last sample of its trajectory"), _("MID")))
        return marks


def has_text(sample: Sample) -> bool:
    """Whether the text of the response was recorded. Without it, the length in characters is unknown, and not 0."""
    return not sample.facets & TEXT_PROPERTY_BITS["no-text"]


def build_sample_rows(samples: Iterable[Sample], blind: BlindQueues, reader: int | None = None) -> list[SampleRow]:
    """With `reader`, the id of a user, the rows show what this user has viewed. Others' flags on items of the `blind`
    queues are not counted."""
    samples = list(samples)
    labels = Label.objects.flags().active().outside_of(blind)
    flags = labels.filter(sample__in=[sample.pk for sample in samples]).values("sample")
    flag_counts = dict(flags.annotate(count=Count("pk")).values_list("sample", "count"))
    is_ok_by_id = {} if reader is None else load_viewed_marks(samples, reader)
    rows = []
    for sample in samples:
        is_ok = is_ok_by_id.get(sample.pk)
        viewed_label = "" if is_ok is None else _("OK") if is_ok else _("viewed")
        rows.append(SampleRow(sample, flag_counts.get(sample.pk, 0), viewed_label, bool(is_ok)))
    return rows


def find_filled_columns(rows: list[SampleRow]) -> list[str]:
    """The columns that have values in these rows."""
    samples = [row.sample for row in rows]
    filled = {
        "group": any(sample.group for sample in samples),
        "n": any(sample.index is not None for sample in samples),
        "adv": any(sample.advantage is not None for sample in samples),
        "len": bool(samples),
        "staleness": any(sample.staleness for sample in samples),
        "duration": any(sample.duration is not None for sample in samples),
        "source": len({sample.data_source for sample in samples}) > 1,
        "expected": any(sample.expected for sample in samples),
    }
    return [name for name in SAMPLE_COLUMNS if filled[name]]
