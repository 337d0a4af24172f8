"""Display preferences in cookies, so that the first paint has them: theme, shortcuts, language."""

import json
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils import translation
from django.utils.cache import patch_cache_control
from django.utils.translation import gettext as _
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_http_methods, require_POST
from django.views.i18n import JavaScriptCatalog

from dashboard.pages.common import YEAR_SECONDS, get_return_url

LANGUAGES = tuple(code for code, _name in settings.LANGUAGES)


@require_POST
def set_theme_view(request: HttpRequest) -> HttpResponse:
    return save_choice_in_cookie(request, "theme", ("light", "dark"))


@require_POST
def set_shortcuts_view(request: HttpRequest) -> HttpResponse:
    """Single-key shortcuts: `on` (default) or `off`."""
    return save_choice_in_cookie(request, "keys", ("off",))


@require_POST
def set_language_view(request: HttpRequest) -> HttpResponse:
    """Any other value, for example `auto`, is the browser's language."""
    return save_choice_in_cookie(request, settings.LANGUAGE_COOKIE_NAME, LANGUAGES)


def save_choice_in_cookie(request: HttpRequest, name: str, allowed: tuple[str, ...]) -> HttpResponse:
    """Redirects back to the form's page; a value that is not allowed selects the default."""
    response = redirect(get_return_url(request, "runs"), permanent=False)
    choice = request.POST.get(name, "")
    if choice in allowed:
        response.set_cookie(name, choice, max_age=YEAR_SECONDS, path=f"{settings.PREFIX}/", samesite="Lax")
    else:
        response.delete_cookie(name, path=f"{settings.PREFIX}/", samesite="Lax")
    return response


class ScriptCatalogue(JavaScriptCatalog):
    """The scripts' texts for `i18n.js`, without the date formats and functions of Django's own script."""

    packages = ["dashboard"]

    def render_to_response(self, context: dict[str, Any], **_options: Any) -> HttpResponse:
        texts = json.dumps(context["catalog"], ensure_ascii=False)
        script = f"globalThis.catalogue = {{texts: {texts}, form: (n) => {context['plural'] or 'n !== 1'}}};"
        return HttpResponse(script, content_type="text/javascript; charset=utf-8")


@gzip_page
@require_http_methods(["GET", "HEAD"])
def script_catalogue_view(request: HttpRequest, language: str) -> HttpResponseBase:
    """The scripts' texts. Browsers may cache them for a year, since the page's link contains the release."""
    if language not in LANGUAGES:
        raise Http404(_("This language is not available."))
    with translation.override(language):
        response: HttpResponseBase = ScriptCatalogue.as_view()(request)
    patch_cache_control(response, public=True, max_age=YEAR_SECONDS, immutable=True)
    return response
