"""All URLs: the API is below /api/, everything else is a page."""

from django.urls import include, path

from dashboard.api.views import health, server_metrics

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", server_metrics.server_metrics_view),
    path("api/", include("dashboard.api.urls")),
    path("", include("dashboard.pages.urls")),
]

handler400 = "dashboard.pages.common.error_pages.bad_request"
handler403 = "dashboard.pages.common.error_pages.permission_denied"
handler404 = "dashboard.pages.common.error_pages.page_not_found"
handler500 = "dashboard.pages.common.error_pages.server_error"
