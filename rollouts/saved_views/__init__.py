"""Saved views: query, columns, order and charts of a page with a name, private or shared with a project.

Depends on: the models and projects.
Invariant: a view stores only the state of a page; who opens it sees only the runs that they may see.
"""

from rollouts.saved_views.saved_views import delete_view, may_change_view, save_view, update_view

__all__ = ["delete_view", "may_change_view", "save_view", "update_view"]
