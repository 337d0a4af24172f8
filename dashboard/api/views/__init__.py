"""The views of the API, one module per resource.

Depends on: the shared modules of `dashboard.api`, `dashboard.permissions`, `workers.dispatch` and the domain.
Invariant: a view parses, calls one function of the domain and renders. Unknown parameters are errors.
"""

__all__: list[str] = []
