"""The streaming PUT and HEAD of dumps and artifact files, in front of Django.

Depends on: `dashboard.api` (errors), `dashboard.permissions`, `workers.dispatch`; ingest, pins and storage.
Invariant: token, scope, project and size are checked before the first byte; Django would spool the complete body
before a view runs. A receipt is sent after fsync and commit.
"""

from dashboard.uploads.app import handle_upload, is_upload_request, start_json_response

__all__ = ["handle_upload", "is_upload_request", "start_json_response"]
