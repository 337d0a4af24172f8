"""The way to the OpenID provider and back. allauth keeps the state of it in the session, for ten minutes."""

from __future__ import annotations

import secrets
from typing import Any, Final, NamedTuple

from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.internal import statekit
from allauth.socialaccount.models import SocialApp
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from requests import RequestException

from dashboard.sign_in.external.accounts import Identity, SignInRefusedError
from dashboard.sign_in.external.provider import (
    ProviderError,
    encrypt,
    get_openid_settings,
    identify,
    load_configuration,
    uses_basic_auth,
)

CALLBACK_PATH: Final = "/sign-in/openid/callback/"
OPENID_SOURCE: Final = "openid"
DEFAULT_SCOPES: Final = ("openid", "profile", "email")
OPTIONAL_SCOPES: Final = ("groups", "offline_access")  # asked for if the provider lists them


class FinishedFlow(NamedTuple):
    """`renewal` is for later questions to the provider, empty if it gives none. `link_user`: the id of the signed-in
    user who links an account, else None."""

    identity: Identity
    renewal: str
    next_url: str
    link_user: int | None


class Adapter(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]
    """allauth's client, with our settings instead of rows of its tables."""

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request, get_openid_settings().issuer)

    def get_provider(self) -> Provider:
        return Provider(self.request)

    @property
    def openid_config(self) -> dict[str, Any]:
        return load_configuration()

    @property
    def basic_auth(self) -> bool:
        return uses_basic_auth(load_configuration())

    def get_callback_url(self, request: HttpRequest, app: SocialApp) -> str:
        return f"{settings.PUBLIC_URL}{CALLBACK_PATH}"


class Provider(OpenIDConnectProvider):  # type: ignore[misc]
    def __init__(self, request: HttpRequest) -> None:
        openid = get_openid_settings()
        app = SocialApp(
            provider=self.id, provider_id=openid.issuer, name=openid.name, client_id=openid.client_id,
            secret=openid.client_secret, settings={"server_url": openid.issuer, "oauth_pkce_enabled": True},
        )  # fmt: skip
        super().__init__(request, app=app)

    def get_oauth2_adapter(self, request: HttpRequest) -> Adapter:
        return Adapter(request)


def start_flow(request: HttpRequest, next_url: str, link_user: int | None = None) -> HttpResponse:
    """Redirects to the provider. Raises ProviderError."""
    nonce = secrets.token_urlsafe(24)
    supported = load_configuration().get("scopes_supported") or ()
    scopes = get_openid_settings().scopes or (
        *DEFAULT_SCOPES,
        *(scope for scope in OPTIONAL_SCOPES if scope in supported),
    )
    with_address = copy_session_address(request)
    response: HttpResponse = Provider(request).redirect(
        request, "login", next_url=next_url, scope=list(scopes), auth_params={"nonce": nonce}, nonce=nonce,
        link_user=link_user,
    )  # fmt: skip
    with_address(request)
    return response


def finish_flow(request: HttpRequest) -> FinishedFlow:
    """After the provider has sent the browser back. Raises SignInRefusedError, ProviderError, SignInEndedError."""
    with_address = copy_session_address(request)
    provider = Provider(request)
    state = statekit.unstash_state(request, provider_id=provider.sub_id, state_id=request.GET.get("state", ""))
    with_address(request)
    if state is None:
        raise SignInRefusedError(
            _("This sign-in was not started in this browser, or more than ten minutes ago. Try again.")
        )
    if request.GET.get("error") == "access_denied":
        raise SignInRefusedError(_("The sign-in was cancelled, or the provider did not allow it."))
    if "code" not in request.GET:
        raise ProviderError(f"The provider answered with the error {request.GET.get('error', '')[:60]!r}.")
    adapter = provider.get_oauth2_adapter(request)
    client = adapter.get_client(request, provider.app)
    try:
        tokens = adapter.get_access_token_data(
            request, provider.app, client, pkce_code_verifier=state["pkce_code_verifier"]
        )
    except (OAuth2Error, RequestException, ImmediateHttpResponse) as error:
        raise ProviderError(f"The provider did not accept the code: {str(error)[:200]}") from error
    identity = identify(tokens, state["nonce"])
    renewal = encrypt(tokens["refresh_token"]) if isinstance(tokens.get("refresh_token"), str) else ""
    return FinishedFlow(identity, renewal, state.get("next") or "", state["link_user"])


def copy_session_address(request: HttpRequest) -> Any:
    """Returns a function that tells a new session object the browser and address of this one: allauth replaces it."""
    old: Any = request.session

    def apply(request: HttpRequest) -> None:
        new: Any = request.session
        new.address, new.user_agent = old.address, old.user_agent

    return apply
