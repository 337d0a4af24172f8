"""The web process: pages for people, the API for programs, uploads in front of Django. Start in `urls.py`.

Depends on: `workers`, the domain and the trainer side.
Invariant: all access is decided in `permissions.py`.
"""

__all__: list[str] = []
