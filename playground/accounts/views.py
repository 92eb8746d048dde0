"""The account page, export and deletion. Everything else about accounts is django-allauth's."""

from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from playground.accounts import selectors, services


@login_required
@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    return render(request, "account/overview.html")


@login_required
@require_GET
def export(request: HttpRequest) -> JsonResponse:
    """Everything stored about the user as one JSON file."""
    response = JsonResponse(selectors.account_export(request.user), json_dumps_params={"indent": 1, "ensure_ascii": False})
    response["Content-Disposition"] = f'attachment; filename="account-{timezone.now():%Y-%m-%d}.json"'
    return response


@login_required
@require_http_methods(["GET", "POST"])
def delete(request: HttpRequest) -> HttpResponse:
    """Asks for the password, then deletes the account with its chats and links."""
    error = ""
    if request.method == "POST":
        user = request.user
        if not user.has_usable_password() or user.check_password(request.POST.get("password", "")):
            logout(request)
            services.account_delete(user=user)
            return HttpResponseRedirect("/accounts/login/?deleted=1")
        error = _("This is not the password of this account. Nothing was deleted.")
    chats = request.user.conversation_set.count()
    links = request.user.sharelink_set.filter(deleted_at=None).count()
    return render(request, "account/delete.html", {"error": error, "chats": chats, "links": links})
