"""The run list: filters, columns, groups, bulk actions. Start in `views.py`, then `columns.py`."""
