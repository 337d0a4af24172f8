"""The ASGI application that uvicorn serves."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
django = get_asgi_application()  # sets up Django, so it comes before every import of models

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import URLRouter  # noqa: E402

from dashboard import consumers  # noqa: E402
from dashboard.origin_check import HostOriginCheck  # noqa: E402

application = HostOriginCheck(django, AuthMiddlewareStack(URLRouter(consumers.websocket_urlpatterns)))
