"""Findings as pages, exported files and chat messages show them, with the numbers of the snapshots."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

import numpy as np
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import (
    ShownImage,
    StepUrlState,
    format_number,
    format_signed_number,
    render_note,
    render_text,
    replace_control_characters,
)
from dashboard.pages.findings import svg_chart
from dashboard.pages.findings.rates import PresentedRates, build_rates_query, present_rates
from dashboard.public_urls import add_public_origin
from rolloutdeck.protocol import encode_data_url
from rollouts.findings import QUERY_PREFIX, serialize_evidence
from rollouts.models import EvidenceItem, Finding
from rollouts.samples import SampleImage
from rollouts.storage import read_image

Kind = EvidenceItem.Kind
MAX_MARKED_RANGES = 200
MAX_EMBEDDED_BYTES = 2 << 20  # of an image in an exported file
MAX_FILE_BYTES = 32 << 20  # of all its images: the file is built in memory
KIND_NAMES = {
    Kind.SAMPLE: N_("Sample"),
    Kind.QUERY: N_("Query"),
    Kind.CHART: N_("Chart"),
    Kind.RATES: N_("Before and after"),
}


@dataclass
class PresentedItem:
    """An item with what its template needs. `path` leads to the source of the snapshot, if that still exists.
    `embedded`: the page leaves the server, so it contains its images and has no links. `left_out`: the positions of
    images that are too large for it."""

    row: EvidenceItem
    snapshot: dict[str, Any]
    path: str
    first: bool
    last: bool
    embedded: bool = False
    left_out: frozenset[int] = frozenset()

    @property
    def kind_name(self) -> str:
        return _(KIND_NAMES[Kind(self.row.kind)])

    @property
    def comment(self) -> SafeString:
        return render_note(self.row.words, has_links=not self.embedded)

    @property
    def link(self) -> str:
        return add_public_origin(self.path) if self.path else ""

    @property
    def position(self) -> str:
        """Runs and step: `grpo · train step 12`."""
        runs = self.snapshot.get("runs") or [self.snapshot.get("run", {"name": ""})]
        names = ", ".join(str(run["name"]) for run in runs)
        if "step" not in self.snapshot:
            return names
        split, step = self.snapshot["split"], self.snapshot["step"]
        text = _("{runs} · {split} all steps") if step is None else _("{runs} · {split} step {step}")
        return text.format(runs=names, split=split, step=step).replace("  ", " ")

    @property
    def forgotten(self) -> bool:
        """The text was removed by `rolloutdeck forget`, or the reader may not see it. Only run and step remain."""
        return bool(self.snapshot.get("forgotten") or self.snapshot.get("hidden"))

    @property
    def removal_notice(self) -> str:
        if self.snapshot.get("hidden"):
            return _("You review a blind queue. Until it is closed, what others say is hidden.")
        return _("The server's administrator removed this text everywhere.")

    @property
    def facts(self) -> list[str]:
        return describe_sample(self.snapshot)

    @property
    def images(self) -> list[ShownImage]:
        images = [SampleImage(**image) for image in self.snapshot.get("images", [])]
        if not self.embedded:
            return [self.link_image(image) for image in images]
        return [self.embed_image(image, fits=at not in self.left_out) for at, image in enumerate(images)]

    def link_image(self, image: SampleImage) -> ShownImage:
        url = reverse("finding-image", args=[self.row.pk, image.sha256]) if image.sha256 else ""
        return ShownImage(image, url)

    def embed_image(self, image: SampleImage, *, fits: bool) -> ShownImage:
        if not image.sha256:
            return ShownImage(image, "")
        if not fits:
            return ShownImage(replace(image, problem=_("The image is too large for this file.")), "")
        data = read_image(self.row.finding.project.image_owner, image.sha256)
        return ShownImage(image, encode_data_url(data or b"") or "")

    @property
    def response(self) -> SafeString:
        return self.render_quoted("response")

    @property
    def prompt(self) -> SafeString:
        return self.render_quoted("prompt")

    def render_quoted(self, field: str) -> SafeString:
        quotes = [quote for quote in self.snapshot["quotes"] if quote["field"] == field]
        return render_quoted_text(self.snapshot[field], [(quote["start"], quote["end"]) for quote in quotes])

    @property
    def shortened(self) -> list[tuple[str, int, int]]:
        """[(field, characters stored, characters recorded)] of texts that were too long to store completely."""
        lengths = self.snapshot.get("lengths", {}).items()
        stored = [(name, len(self.snapshot[name]), recorded) for name, recorded in lengths]
        return [text for text in stored if text[2] > text[1]]

    @property
    def charts(self) -> list[tuple[str, svg_chart.SvgChart]]:
        """A chart for each metric, since metrics have no common scale; its lines are the runs."""
        curves, log, zoom = self.snapshot["curves"], self.snapshot.get("log", False), self.snapshot.get("zoom")
        by_name = {name: [curve for curve in curves if curve["name"] == name] for name in self.snapshot["names"]}
        return [
            (describe_chart(name), svg_chart.build_svg_chart(lines, log=log, zoom=zoom))
            for name, lines in by_name.items()
            if lines
        ]

    @cached_property
    def comparison(self) -> PresentedRates:
        return present_rates(self.snapshot, self.row.finding.project)

    @property
    def points(self) -> list[tuple[str, str, list[tuple[int, float | None]]]]:
        """The curves as tables: [(name, step kind, points)]."""
        tables = []
        for curve in self.snapshot["curves"]:
            points = list(zip(curve["steps"], map(shorten_float32, curve["values"]), strict=True))
            tables.append((f"{curve['run']['name']} · {describe_chart(curve['name'])}", curve["step_kind"], points))
        return tables

    @property
    def message(self) -> str:
        """A block to paste in a chat: run and step, score, quotes, link."""
        snapshot = self.snapshot
        if self.forgotten:
            lines = [self.position, self.removal_notice]
        elif self.row.kind == Kind.SAMPLE:
            answer = " ".join((snapshot.get("ground_truth") or "").split())[:60]
            expected = _("expected {answer}").format(answer=answer) if answer else ""
            head = [self.position, describe_score(snapshot["score"]), expected, *self.facts]
            texts = [quote["text"] for quote in snapshot["quotes"]] or ["…" + snapshot["response"][-300:]]
            quotes = ["\n".join(f"> {line}" for line in text.strip().splitlines()) for text in texts]
            lines = [" · ".join(filter(None, head)), *quotes]
        elif self.row.kind == Kind.QUERY:
            mean = snapshot["scores"]["mean"]
            counts = _("{total} of {all} samples").format(total=f"{snapshot['total']:,}", all=f"{snapshot['of']:,}")
            scores = "" if mean is None else " · " + _("mean score {score}").format(score=format_number(mean))
            lines = [f"{self.position} · {snapshot['q'] or _('all samples')}", counts + scores]
        elif self.row.kind == Kind.RATES:
            sides = [" ".join(filter(None, (side.name, side.steps))) for side in self.comparison.sides]
            lines = [" → ".join(sides), *(rate.summary for rate in self.comparison.clear_changes)]
        else:
            lines = [self.position, *(f"{name}: {chart.last_values}" for name, chart in self.charts)]
        return replace_control_characters("\n".join([*lines, *([self.link] if self.link else [])]))


def describe_chart(name: str) -> str:
    """The title of a chart: the name of a metric, or what a query counts."""
    if not name.startswith(QUERY_PREFIX):
        return name
    measure, split, among, q = (*name.removeprefix(QUERY_PREFIX).split("|", 3), "", "", "")[:4]
    titles = {
        "share": _("share of {q} among {among}") if among else _("share of {q}"),
        "count": _("number of {q}"),
        "score": _("mean score of {q}") if q else _("mean score"),
        "length": _("mean length of {q}") if q else _("mean length"),
    }
    title = titles.get(measure, name).replace("{q}", q).replace("{among}", among.replace("%7C", "|"))
    return title if split == "train" else f"{title} ({split})"


def build_evidence_items(finding: Finding, *, embedded: bool = False, is_blind: bool = False) -> list[PresentedItem]:
    rows = list(finding.exhibits.select_related("run", "user", "finding__project"))
    last = len(rows) - 1
    shown = [(row, serialize_evidence(row, is_blind=is_blind)) for row in rows]
    left_out = find_large_images(snapshot for _row, snapshot in shown)
    return [
        PresentedItem(row, snapshot, build_source_path(row, snapshot), at == 0, at == last, embedded, left_out[at])
        for at, (row, snapshot) in enumerate(shown)
    ]


def find_large_images(snapshots: Iterable[dict[str, Any]]) -> list[frozenset[int]]:
    """The positions of the images of each snapshot that one file cannot contain, alone or with those before them."""
    found: list[frozenset[int]] = []
    total = 0
    for snapshot in snapshots:
        large: set[int] = set()
        for at, image in enumerate(snapshot.get("images", [])):
            if image["bytes"] > min(MAX_EMBEDDED_BYTES, MAX_FILE_BYTES - total):
                large.add(at)
            else:
                total += image["bytes"]
        found.append(frozenset(large))
    return found


def build_source_path(row: EvidenceItem, snapshot: dict[str, Any]) -> str:
    """The page of which the item is a snapshot; empty if the run is deleted or in the trash."""
    run = row.run
    if run is None or run.deleted_at is not None or snapshot.get("forgotten") or snapshot.get("hidden"):
        return ""
    if row.kind == Kind.SAMPLE:
        return reverse("sample", args=[row.sample])
    if row.kind == Kind.CHART:
        return reverse("run", args=[run.uid])
    if row.kind == Kind.RATES:
        return f"{reverse('reward-check', args=[run.uid])}?{urlencode(build_rates_query(snapshot))}"
    step = "all" if snapshot["step"] is None else str(snapshot["step"])
    url = StepUrlState(split=snapshot["split"], q=snapshot["q"], sort=snapshot["ordering"], attempt=snapshot["attempt"])
    return reverse("step", args=[run.uid, step]) + url.link()


def describe_sample(snapshot: dict[str, Any]) -> list[str]:
    """The facts of a sample that are shown next to its score."""
    tokens, advantage = snapshot.get("tokens"), snapshot.get("advantage")
    length = _("{count} chars") if tokens is None else _("{count} tok")
    facets = snapshot.get("facets", [])
    is_unknown = tokens is None and "no-text" in facets
    count = "–" if is_unknown else f"{snapshot.get('chars', 0) if tokens is None else tokens:,}"
    inferred = _("looks truncated") if "trunc?" in facets else ""
    facts = [
        length.format(count=count),
        _("truncated") if snapshot.get("truncated") else inferred,
        "" if advantage is None else _("adv {advantage}").format(advantage=format_signed_number(advantage)),
        _("n {index}").format(index=snapshot["index"]) if snapshot.get("index") is not None else "",
        snapshot.get("data_source") or "",
        snapshot.get("finish_reason") or "",
    ]
    return [fact for fact in facts if fact]


def shorten_float32(value: float | None) -> float | None:
    """Curves are stored in single precision: 0.1 is shown as 0.1, not as 0.10000000149011612."""
    return value if value is None or float(np.float32(value)) != value else float(str(np.float32(value)))


def render_quoted_text(text: str, ranges: Iterable[tuple[int, int]]) -> SafeString:
    """The text with these ranges marked; overlapping ranges are merged."""
    parts: list[str] = []
    at = 0
    for start, end in sorted(ranges)[:MAX_MARKED_RANGES]:
        start = max(start, at)
        if start < min(end, len(text)):
            parts += [render_text(text[at:start]), f'<mark class="quote">{render_text(text[start:end])}</mark>']
            at = end
    return mark_safe("".join([*parts, render_text(text[at:])]))


def describe_score(score: float | None) -> str:
    return _("no score") if score is None else _("score {score}").format(score=format_number(score))


def build_finding_message(finding: Finding, items: list[PresentedItem], path: str) -> str:
    """The full finding as a block to paste in a chat."""
    parts = [finding.title, finding.note, *(item.message for item in items), add_public_origin(path)]
    return "\n\n".join(part for part in parts if part)
