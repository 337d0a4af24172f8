"""The server-rendered pages: one folder per feature, shared parts in `common/`.

Depends on: `dashboard.permissions` and the domain; never `dashboard.api`.
Invariant: views read the request, call the domain and render. Only `urls.py` names their modules.
"""

__all__: list[str] = []
