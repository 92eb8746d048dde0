"""Pages that say what went wrong where nothing else is sure: drawn without the database, the session or the user."""

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _page(request, 400)


def server_error(request: HttpRequest) -> HttpResponse:
    return _page(request, 500)


def _page(request: HttpRequest, status: int) -> HttpResponse:
    return HttpResponse(render_to_string(f"{status}.html", {"request": request}), status=status)
