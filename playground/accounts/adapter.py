"""How django-allauth behaves here."""

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest

from playground.accounts.selectors import site_settings


class AccountAdapter(DefaultAccountAdapter):
    error_messages = DefaultAccountAdapter.error_messages | {
        "email_password_mismatch": "E-mail and password do not match. Try again, or reset the password.",
        "username_email_password_mismatch": "E-mail and password do not match. Try again, or reset the password.",
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return site_settings().signup_open
