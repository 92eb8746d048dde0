"""What the pages of accounts show besides their form."""

from django.http import HttpRequest

from playground.accounts.selectors import site_settings
from playground.chat.models import Conversation


def page(request: HttpRequest) -> dict:
    """``csp_nonce`` for every template; on pages of accounts also the chats of this browser and a recorded run."""
    context = {"csp_nonce": getattr(request, "csp_nonce", "")}
    if request.path.startswith("/accounts/") and hasattr(request, "owner") and request.owner.user is None:
        from playground.sharing.selectors import last_public_run

        visitor_id = request.visitor_id
        context["kept_chats"] = Conversation.objects.filter(visitor_id=visitor_id).count() if visitor_id else 0
        context["last_run"] = last_public_run()
        context["signup_open"] = site_settings().signup_open
    return context
