"""How django-allauth behaves here."""

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest
from django.utils.translation import gettext_lazy

from playground.accounts.selectors import site_settings

MISMATCH = gettext_lazy("E-mail and password do not match. Try again, or reset the password.")


class AccountAdapter(DefaultAccountAdapter):
    error_messages = DefaultAccountAdapter.error_messages | {
        "email_password_mismatch": MISMATCH,
        "username_email_password_mismatch": MISMATCH,
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return site_settings().signup_open
