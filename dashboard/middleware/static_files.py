"""Scripts and styles: URLs of a release, compression."""

import re
from typing import Any

from django.http import FileResponse, HttpRequest, HttpResponseBase
from django.utils.cache import patch_vary_headers
from whitenoise.middleware import WhiteNoiseMiddleware

from dashboard import assets

RELEASE_PATTERN = re.compile(r"\A/static/[0-9a-f]{10}/")


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]
    """Scripts, minified, and styles, all compressed. Pages are not compressed, because they have secrets next to text
    that others choose, and the length of the compressed response would reveal the secrets (breachattack.com)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_files(assets.STATIC_DIR, prefix=f"{self.static_prefix}{assets.get_release_hash()}/")

    def __call__(self, request: HttpRequest) -> Any:
        if request.path_info not in self.files:  # a page of another release gets the current file, without caching
            request.path_info = RELEASE_PATTERN.sub("/static/", request.path_info)
        return super().__call__(request)

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponseBase:
        return compress_response(request, WhiteNoiseMiddleware.serve(static_file, request))


def compress_response(request: HttpRequest, response: FileResponse) -> HttpResponseBase:
    """Compresses a complete script or style, and minifies scripts. Vendored files are stored compressed."""
    is_full = request.method == "GET" and response.status_code == 200 and "Content-Encoding" not in response.headers
    if not is_full or not request.path.endswith((".css", ".js", ".svg")):
        return response
    patch_vary_headers(response, ["Accept-Encoding"])
    accepted = {coding.partition(";")[0].strip() for coding in request.headers.get("Accept-Encoding", "").split(",")}
    encoding = next((name for name in assets.COMPRESSORS if name in accepted), None)
    if encoding is None:
        return response
    content = assets.minify(request.path, b"".join(response.streaming_content))  # type: ignore[arg-type]
    body = assets.COMPRESSORS[encoding](content)
    response.streaming_content = [body]
    response.headers["Content-Encoding"] = encoding
    response.headers["Content-Length"] = str(len(body))
    return response
