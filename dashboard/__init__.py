"""The web process: pages for people, the API for programs, uploads in front of Django. Start in `urls.py`."""
