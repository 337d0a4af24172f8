"""The language of the pages: chosen in a cookie, else what the browser asks for; and the scripts' texts in it."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.utils import translation
from django.utils.cache import patch_cache_control
from django.utils.translation import gettext as _
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_http_methods, require_POST
from django.views.i18n import JavaScriptCatalog

from dashboard.pages.settings.preferences import YEAR_SECONDS, save_choice_in_cookie

NAMES = dict(settings.LANGUAGES)


@require_POST
def set_language_view(request: HttpRequest) -> HttpResponse:
    """Any other value is `auto`: what the browser asks for."""
    return save_choice_in_cookie(request, settings.LANGUAGE_COOKIE_NAME, tuple(NAMES))


class ScriptCatalogue(JavaScriptCatalog):
    """Our scripts' texts alone, for `i18n.js`: Django's own script brings formats of dates and more."""

    packages = ["dashboard"]

    def render_to_response(self, context: dict[str, Any], **_named: Any) -> HttpResponse:
        texts = json.dumps(context["catalog"], ensure_ascii=False)
        script = f"globalThis.catalogue = {{texts: {texts}, form: (n) => {context['plural'] or 'n !== 1'}}};"
        return HttpResponse(script, content_type="text/javascript; charset=utf-8")


@gzip_page
@require_http_methods(["GET", "HEAD"])
def script_catalogue_view(request: HttpRequest, language: str) -> HttpResponseBase:
    """Our scripts' texts in this language, for browsers to keep: the page's link names the release."""
    if language not in NAMES:
        raise Http404(_("This language is not available."))
    with translation.override(language):
        response: HttpResponseBase = ScriptCatalogue.as_view()(request)
    patch_cache_control(response, public=True, max_age=YEAR_SECONDS, immutable=True)
    return response
