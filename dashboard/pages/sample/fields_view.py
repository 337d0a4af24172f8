"""Every key that was recorded of a sample, under the name it was logged with: to show, to copy, to download."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import LONE_SURROGATE_PATTERN
from rollouts.errors import NotFoundError
from rollouts.models import Sample
from rollouts.samples import load_body

HIDDEN_FIELDS = ("seen_in", "textless", "extras")
MAX_VALUE_CHARS = 4000  # characters of a value on the page; the download has all
MAX_LIST_VALUES = 40  # of a list
FIELD_BUTTONS_HTML = (
    '<span class="keyed row"><button type="button" class="plain small" data-copy-from="{there}" aria-label="{copies}">'
    '{copy}</button><a class="small muted" href="{there}" download aria-label="{downloads}">{download}</a></span>'
)


@dataclass(frozen=True, slots=True)
class FieldEntry:
    """`text` is the value as it is copied, cut to what a page shows; `more` says how much was cut."""

    name: str
    text: str
    more: str = ""


def collect_fields(body: Any) -> dict[str, Any]:
    """{name: value} of all that was recorded. A trainer's key called like one of ours is `extras.key`."""
    ours = {name: getattr(body, name) for name in type(body).__dataclass_fields__ if name not in HIDDEN_FIELDS}
    if body.textless:
        del ours["response"]
    found = {name: value for name, value in ours.items() if value not in (None, {}, [])}
    return found | {f"extras.{key}" if key in ours else key: value for key, value in body.extras.items()}


def render_field_buttons(sample: Sample, key: str) -> SafeString:
    """Copying and downloading what was recorded under a key. A pane has ten: a template takes six times as long."""
    there = f"{reverse('sample-file', args=[sample.pk])}?key={quote(key, safe='')}"
    copies, downloads = _("Copy %(key)s") % {"key": key}, _("Download %(key)s") % {"key": key}
    return format_html(
        FIELD_BUTTONS_HTML, there=there, copies=copies, downloads=downloads, copy=_("copy"), download=_("download")
    )


def build_field_entries(body: Any) -> list[FieldEntry]:
    return [build_field_entry(name, value) for name, value in collect_fields(body).items()]


def build_field_entry(name: str, value: Any) -> FieldEntry:
    if isinstance(value, list) and len(value) > MAX_LIST_VALUES:
        more = _("{count} more values").format(count=f"{len(value) - MAX_LIST_VALUES:,}")
        return FieldEntry(name, f"{truncate_value(format_field_value(value[:MAX_LIST_VALUES]))[0]} …", more)
    text, left = truncate_value(format_field_value(value))
    return FieldEntry(name, text, _("{count} more characters").format(count=f"{left:,}") if left else "")


def truncate_value(text: str) -> tuple[str, int]:
    return text[:MAX_VALUE_CHARS], max(0, len(text) - MAX_VALUE_CHARS)


def format_field_value(value: Any) -> str:
    """Text as it is; all else as JSON, lists of numbers in one line."""
    if isinstance(value, str):
        return value
    short = not isinstance(value, dict) and not (isinstance(value, list) and any(map(is_nested, value[:64])))
    return json.dumps(value, ensure_ascii=False, indent=None if short else 2, default=str)


def is_nested(value: Any) -> bool:
    return isinstance(value, (dict, list))


@login_required
@require_safe
def download_field_view(request: HttpRequest, pk: str) -> HttpResponse:
    """One key's value as a file, `?key=response`; without a key all of them as JSON."""
    sample = permissions.sample_or_404(request, pk)
    try:
        found = collect_fields(load_body(sample))
    except NotFoundError as gone:
        raise Http404(str(gone)) from gone
    key = request.GET.get("key", "")
    if key and key not in found:
        raise Http404(_("Key not found in this sample."))
    text = format_field_value(found[key]) if key else json.dumps(found, ensure_ascii=False, indent=1, default=str)
    plain = not key or not isinstance(found[key], str)
    answer = HttpResponse(
        LONE_SURROGATE_PATTERN.sub("\ufffd", text), f"{'application/json' if plain else 'text/plain'}; charset=utf-8"
    )
    ending = f"{safe_name(key)}.{'json' if plain else 'txt'}" if key else "sample.json"
    answer["Content-Disposition"] = f'attachment; filename="step{sample.step.step}-{sample.pk[:8]}-{ending}"'
    answer["X-Content-Type-Options"] = "nosniff"
    answer["Cache-Control"] = "private, no-cache"
    return answer


def safe_name(key: str) -> str:
    return "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in key)[:60]
