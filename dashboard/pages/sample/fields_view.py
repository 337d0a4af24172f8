"""The recorded fields of a sample under the names with which they were logged: shown, copied, downloaded."""

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import LONE_SURROGATE_PATTERN
from rollouts.errors import NotFoundError
from rollouts.models import Sample
from rollouts.samples import load_body

HIDDEN_FIELDS = ("source_dumps", "textless", "extras")
MAX_VALUE_CHARS = 4000  # of a value on the page; the download is complete
MAX_LIST_VALUES = 40
FIELD_BUTTONS_HTML = (
    '<span class="keyed row"><button type="button" class="plain small" data-copy-from="{url}" aria-label="{label}">'
    '{copy}</button><a class="small muted" href="{url}" download aria-label="{download_label}">{download}</a></span>'
)


@dataclass(frozen=True, slots=True)
class FieldEntry:
    """`text` is the value, cut to what a page shows; `more` says how much was cut."""

    name: str
    text: str
    more: str = ""


def collect_fields(body: Any) -> dict[str, Any]:
    """{name: value}. A trainer's key with the same name as a standard field is `extras.key`."""
    standard = {name: getattr(body, name) for name in type(body).__dataclass_fields__ if name not in HIDDEN_FIELDS}
    if body.textless:
        del standard["response"]
    recorded = {name: value for name, value in standard.items() if value not in (None, {}, [])}
    return recorded | {f"extras.{key}" if key in standard else key: value for key, value in body.extras.items()}


def render_field_buttons(sample: Sample, key: str) -> SafeString:
    """Copy and download of one field. A pane has ten of these, and a template takes six times as long."""
    url = f"{reverse('sample-file', args=[sample.pk])}?key={quote(key, safe='')}"
    labels = {"label": _("Copy %(key)s") % {"key": key}, "download_label": _("Download %(key)s") % {"key": key}}
    return format_html(FIELD_BUTTONS_HTML, url=url, copy=_("copy"), download=_("download"), **labels)


def build_field_entries(body: Any) -> list[FieldEntry]:
    return [build_field_entry(name, value) for name, value in collect_fields(body).items()]


def build_field_entry(name: str, value: Any) -> FieldEntry:
    if isinstance(value, list) and len(value) > MAX_LIST_VALUES:
        left = len(value) - MAX_LIST_VALUES
        more = ngettext("{count} more value", "{count} more values", left).format(count=f"{left:,}")
        return FieldEntry(name, f"{format_field_value(value[:MAX_LIST_VALUES])[:MAX_VALUE_CHARS]} …", more)
    text = format_field_value(value)
    left = len(text) - MAX_VALUE_CHARS
    if left <= 0:
        return FieldEntry(name, text)
    more = ngettext("{count} more character", "{count} more characters", left).format(count=f"{left:,}")
    return FieldEntry(name, text[:MAX_VALUE_CHARS], more)


def format_field_value(value: Any) -> str:
    """Strings unchanged; all else as JSON, lists of plain values on one line."""
    if isinstance(value, str):
        return value
    items = value[:64] if isinstance(value, list) else ()
    nested = isinstance(value, dict) or any(isinstance(item, (dict, list)) for item in items)
    return json.dumps(value, ensure_ascii=False, indent=2 if nested else None, default=str)


@login_required
@require_safe
def download_field_view(request: HttpRequest, pk: str) -> HttpResponse:
    """The value of the field `key` as a file; without `key` all fields as JSON."""
    sample = permissions.sample_or_404(request, pk)
    try:
        fields = collect_fields(load_body(sample))
    except NotFoundError as error:
        raise Http404(str(error)) from error
    key = request.GET.get("key", "")
    if key and key not in fields:
        raise Http404(_("Key not found in this sample."))
    text = format_field_value(fields[key]) if key else json.dumps(fields, ensure_ascii=False, indent=1, default=str)
    is_text = bool(key) and isinstance(fields[key], str)
    content_type = f"{'text/plain' if is_text else 'application/json'}; charset=utf-8"
    response = HttpResponse(LONE_SURROGATE_PATTERN.sub("\ufffd", text), content_type)
    name = re.sub("[^0-9A-Za-z]", "_", key)[:60] if key else "sample"
    filename = f"step{sample.step.step}-{sample.pk[:8]}-{name}.{'txt' if is_text else 'json'}"
    response["Content-Disposition"] = f'attachment; filename="{filename}"'
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "private, no-cache"
    return response
