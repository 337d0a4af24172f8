"""The command palette (Ctrl+K). Start in `views.py`."""
