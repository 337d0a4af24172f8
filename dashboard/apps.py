"""Django app of the web process."""

from django.apps import AppConfig


class DashboardConfig(AppConfig):
    name = "dashboard"
