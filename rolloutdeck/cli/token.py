"""`rolloutdeck token create`: creates a revocable token. Only the secret is printed to standard output."""

from __future__ import annotations

import argparse

from rolloutdeck.cli.common import connect, format_sentence, print_message, require_project, send_request
from rolloutdeck.errors import UsageError
from rolloutdeck.protocol import TOKEN_SCOPES


def main(args: argparse.Namespace) -> int:
    settings, server = connect(args)
    project = require_project(args, settings)
    scopes = [word for part in args.scope or ["ingest"] for scope in part.split(",") if (word := scope.strip())]
    if unknown := [scope for scope in scopes if scope not in TOKEN_SCOPES]:
        raise UsageError(f"Unknown scope {unknown[0]!r}. Available: {', '.join(TOKEN_SCOPES)}.")
    if not scopes:
        raise UsageError(f"--scope is empty. Use one or more of {','.join(TOKEN_SCOPES)}.")
    if args.days is not None and args.days < 1:
        raise UsageError("--days must be at least 1.")
    body = {"name": args.name, "project": project, "scopes": scopes}
    if args.days is not None:
        body["days"] = args.days
    response = send_request(server, "POST", "tokens/", body)
    token = response.json()
    secret = token.get("token") if isinstance(token, dict) else None
    if not isinstance(secret, str):
        raise UsageError(format_sentence(response.error_message))
    if token.get("project_created"):
        print_message(f"Created project {project}.")
    created = f"Created token {args.name} for project {project} on {server.url} with the scopes {', '.join(scopes)}."
    expiry = f"expires on {token['expires_at'][:10]}" if token.get("expires_at") else "does not expire"
    print_message(f"{created} It is shown only once and {expiry}.")
    print_message("For a trainer, set ROLLOUTDECK_TOKEN, or save the token in a file and set ROLLOUTDECK_TOKEN_FILE.")
    print(secret)
    return 0
