"""The description of the API: OpenAPI for programs, a page for users."""

from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer
from drf_spectacular.settings import spectacular_settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions


class SchemaView(APIView):
    """OpenAPI 3, as JSON, or YAML with `Accept: application/yaml`."""

    renderer_classes = (OpenApiJsonRenderer, OpenApiYamlRenderer)
    schema = None

    def get(self, request: Request) -> Response:
        return Response(generate_schema())


def generate_schema() -> dict[str, Any]:
    generator: Any = SchemaGenerator
    schema: dict[str, Any] = generator().get_schema(request=None, public=True)
    schema["info"]["version"] = spectacular_settings.VERSION
    return schema


@login_required
def api_docs_page(request: HttpRequest) -> HttpResponse:
    """Every URL with its methods, parameters and bodies, in the order of the schema."""
    calls = [
        {"method": method.upper(), "path": path, **call, "fields": list_body_fields(call)}
        for path, methods in generate_schema()["paths"].items()
        for method, call in methods.items()
    ]
    project = permissions.visible_projects(request).order_by("slug").first()
    context = {
        "calls": calls,
        "about": spectacular_settings.DESCRIPTION,
        "server_url": settings.PUBLIC_URL,
        "example_project": project.slug if project else "PROJECT",
    }
    return render(request, "api/docs.html", context)


def list_body_fields(call: dict[str, Any]) -> list[tuple[str, str]]:
    content = call.get("requestBody", {}).get("content", {}).get("application/json", {})
    properties = content.get("schema", {}).get("properties", {})
    return [(name, field["description"]) for name, field in properties.items()]
