"""Completes a query: names with their type and range, values with the number of samples they would leave.

Depends on: the search, the logged keys and the terms of labels and re-scores.
Invariant: a completion changes nothing, and counts only what it can count while the user types.
"""

from rollouts.query.completion.complete import complete_query
from rollouts.query.completion.context import CompletionChoice, QueryCompletion
from rollouts.query.completion.names import format_range
from rollouts.query.completion.projects import complete_query_of_runs

__all__ = ["CompletionChoice", "QueryCompletion", "complete_query", "complete_query_of_runs", "format_range"]
