"""Projects, members, tokens, sign-in, language and display preferences. One module per page; start in `projects.py`."""

from dashboard.pages.settings.sign_in import create_sign_in_link

__all__ = ["create_sign_in_link"]
