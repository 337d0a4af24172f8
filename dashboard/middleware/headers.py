"""Headers of every response."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase

from rolloutdeck.protocol import SERVER_HEADER, WIRE_VERSION

# Generations are hostile input: nothing on a page may run, or send data elsewhere.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; object-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
SERVER_HEADER_VALUE = str(WIRE_VERSION)


def add_server_headers(response: HttpResponseBase) -> HttpResponseBase:
    response.headers[SERVER_HEADER] = SERVER_HEADER_VALUE
    response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
    return response


def rolloutdeck_headers(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Adds the header without which a client does not trust a response, and the content security policy."""

    def respond(request: HttpRequest) -> HttpResponseBase:
        return add_server_headers(get_response(request))

    return respond
