"""No response has a text that was forgotten."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase

from rollouts.forgetting import clear_forgotten_texts


def clear_caches_of_forgotten_texts(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[..., HttpResponseBase]:
    """Clears the caches of this process first if they may have a prompt that was forgotten."""

    def respond(request: HttpRequest) -> HttpResponseBase:
        clear_forgotten_texts()
        return get_response(request)

    return respond
