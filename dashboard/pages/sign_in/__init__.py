"""The pages that sign a user in: by password, by a link, by a code, by the OpenID provider.

Depends on: `dashboard.sign_in`, which decides; projects and queues, for the page that opens afterwards.
Invariant: each attempt is counted before its password or code is checked. Start in `views.py`.
"""

from dashboard.pages.sign_in.code_step import get_wrong_code_text
from dashboard.pages.sign_in.openid import build_external_context

__all__ = ["build_external_context", "get_wrong_code_text"]
