"""The stats page and the figures for Prometheus."""

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import render

from playground.sharing.views import page_boot


@login_required
def stats(request: HttpRequest) -> HttpResponse:
    if not request.user.is_staff:
        raise PermissionDenied("This page is for staff.")
    get_token(request)
    return render(request, "usage/stats.html", {"boot": page_boot(request)})
