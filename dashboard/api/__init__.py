"""The HTTP API below `/api/v1/`: one module per resource in `views/`, the shared parts next to it.

Depends on: `dashboard.permissions`, `workers.dispatch` and the domain.
Invariant: a view parses, calls one function of the domain and renders. Unknown parameters are errors.
"""

from dashboard.api.exceptions import build_error_body, describe_exception

__all__ = ["build_error_body", "describe_exception"]
