"""How people and programs sign in: links, sessions, the second factor, limits of attempts, tokens of the API, and
`external/`: OpenID Connect and headers of a trusted proxy. Passwords are checked by Django.

Depends on: counters, projects.
Invariant: a removed member and a revoked token lose access at their next request.
Modules are imported one by one: Django's settings read `external_settings`, before there are models.
"""

__all__: list[str] = []
