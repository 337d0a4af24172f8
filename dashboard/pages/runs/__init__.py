"""The run list: filters, columns, groups, bulk actions."""
