"""The pages that sign a user in: by password, by a link, by a code, by the OpenID provider.

Depends on: `dashboard.sign_in`, which decides; projects and queues, for the page that opens afterwards.
Invariant: each attempt is counted before its password or code is checked. Start in `views.py`.
"""

__all__: list[str] = []
