"""Our middlewares. `settings.MIDDLEWARE` has their order, with those of Django and WhiteNoise.

Depends on: `pages.common`, for error pages; `sign_in`; permissions.
Invariant: every response has the content security policy. Start in `headers.py`.
"""

from dashboard.middleware.errors import STATUS_CLIENT_LEFT
from dashboard.middleware.headers import SERVER_HEADER_VALUE

__all__ = ["SERVER_HEADER_VALUE", "STATUS_CLIENT_LEFT"]
