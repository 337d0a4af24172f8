"""How people and programs sign in: links, sessions, the second factor, limits of attempts, tokens of the API, and
`external/`: OpenID Connect and headers of a trusted proxy. Passwords are checked by Django.

Depends on: counters, projects.
Invariant: a removed member and a revoked token lose access at their next request. Start in `sessions.py` and
`tokens.py`. The settings are in `dashboard/sign_in_settings.py`: Django reads them before there are models.
"""

from dashboard.sign_in.links import create_sign_in_link, find_link_user
from dashboard.sign_in.second_factor import (
    count_recovery_codes,
    create_setup,
    enable_second_factor,
    format_secret,
    has_second_factor,
    load_setup,
    remove_second_factor,
    replace_recovery_codes,
    verify_code,
)
from dashboard.sign_in.sessions import (
    SessionStore,
    end_all_sessions,
    end_other_sessions,
    end_session,
    get_handle,
    is_signed_key,
    list_sessions,
)
from dashboard.sign_in.throttle import (
    THROTTLE_SECONDS,
    count_and_allow_login,
    get_client_address,
    record_login_success,
)
from dashboard.sign_in.tokens import authenticate_token

__all__ = [
    "SessionStore", "THROTTLE_SECONDS", "authenticate_token", "count_and_allow_login", "count_recovery_codes",
    "create_setup", "create_sign_in_link", "enable_second_factor", "end_all_sessions", "end_other_sessions",
    "end_session", "find_link_user", "format_secret", "get_client_address", "get_handle", "has_second_factor",
    "is_signed_key", "list_sessions", "load_setup", "record_login_success", "remove_second_factor",
    "replace_recovery_codes", "verify_code",
]  # fmt: skip
