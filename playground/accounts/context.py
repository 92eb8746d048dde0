"""What the pages of accounts show besides their form."""

from django.conf import settings
from django.http import HttpRequest

from playground.accounts.selectors import site_settings
from playground.chat.models import Conversation


def page(request: HttpRequest) -> dict:
    """For every template ``csp_nonce`` and ``mail_server`` (there is one); on pages of accounts also this browser's chats and a run."""
    context = {"csp_nonce": getattr(request, "csp_nonce", ""), "mail_server": bool(settings.EMAIL_HOST)}
    if request.path.startswith("/accounts/") and hasattr(request, "owner") and request.owner.user is None:
        from playground.sharing.selectors import last_public_run

        visitor_id = request.visitor_id
        context["kept_chats"] = Conversation.objects.filter(visitor_id=visitor_id).count() if visitor_id else 0
        context["last_run"] = last_public_run()
        context["signup_open"] = site_settings().signup_open
    return context
