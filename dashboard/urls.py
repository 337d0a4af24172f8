"""All addresses: the API under /api/, everything else is a page."""

from __future__ import annotations

from django.urls import include, path

from dashboard.api.views import health

urlpatterns = [
    path("healthz", health.healthz),
    path("metrics", health.metrics),
    path("api/", include("dashboard.api.urls")),
    path("", include("dashboard.pages.urls")),
]

handler400 = "dashboard.pages.common.error_pages.bad"
handler403 = "dashboard.pages.common.error_pages.refused"
handler404 = "dashboard.pages.common.error_pages.not_found"
handler500 = "dashboard.pages.common.error_pages.broken"
