"""The response with an image of a dump, for pages and API. The caller has checked that the user may see its sample.

The bytes are hostile. Their type is read from the content again, and headers forbid the browser to guess another type
or to run anything. Nothing decodes them on the server.
"""

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotModified
from django.utils.translation import gettext as _

from rolloutdeck.protocol import SHA256_PATTERN, detect_image
from rollouts.storage import read_image

CONTENT_SECURITY_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"


def build_image_response(request: HttpRequest, owner: str, digest: str) -> HttpResponse:
    """Raises Http404 if `owner` has no such image."""
    data = read_image(owner, digest) if SHA256_PATTERN.match(digest) else None
    info = detect_image(data) if data else None
    if data is None or info is None:
        raise Http404(_("Image not found."))
    etag = f'"{digest}"'
    unchanged = request.headers.get("If-None-Match") == etag
    response = HttpResponseNotModified() if unchanged else HttpResponse(data, content_type=info.media_type)
    response["ETag"] = etag
    response["Cache-Control"] = "private, no-cache"
    response["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    response["Content-Disposition"] = f'inline; filename="{digest[:12]}.{info.kind}"'
    response["Cross-Origin-Resource-Policy"] = "same-origin"
    response["X-Content-Type-Options"] = "nosniff"
    return response
