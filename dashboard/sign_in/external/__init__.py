"""Sign-in with an OpenID provider or through a trusted proxy; accounts, groups, and when access ends.

Depends on: allauth (state, PKCE, exchange of the code, who is who), PyJWT (ID tokens); projects, sessions.
Invariant: an account is found only by issuer and subject, never by its name or e-mail address.
"""

from dashboard.sign_in.external.access import (
    SESSION_SOURCE,
    find_session_refusal,
    find_token_refusal,
    note_answer,
    require_access,
    require_no_refusal,
    unlink_account,
)
from dashboard.sign_in.external.accounts import (
    PROXY_ISSUER,
    Identity,
    SignInRefusedError,
    find_or_create_user,
    link_account,
    list_links,
)
from dashboard.sign_in.external.flow import OPENID_SOURCE, FinishedFlow, finish_flow, start_flow
from dashboard.sign_in.external.provider import ProviderError, SignInEndedError, get_openid_settings
from dashboard.sign_in.external.proxy import (
    SCOPE_KEY,
    SUBJECT_KEY,
    ProxyHeaders,
    ProxyUser,
    get_proxy_user,
    sign_in_by_proxy,
    start_session,
)

__all__ = [
    "FinishedFlow", "Identity", "OPENID_SOURCE", "PROXY_ISSUER", "ProviderError", "ProxyHeaders", "ProxyUser",
    "SCOPE_KEY", "SESSION_SOURCE", "SUBJECT_KEY", "SignInEndedError", "SignInRefusedError", "find_or_create_user",
    "find_session_refusal", "find_token_refusal", "finish_flow", "get_openid_settings", "get_proxy_user",
    "link_account", "list_links", "note_answer", "require_access", "require_no_refusal", "sign_in_by_proxy",
    "start_flow", "start_session", "unlink_account",
]  # fmt: skip
