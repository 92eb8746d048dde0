"""Signing in takes over what the same browser made before."""

from django.contrib.auth.models import AbstractBaseUser
from django.contrib.auth.signals import user_logged_in
from django.dispatch import receiver
from django.http import HttpRequest

from playground.accounts.services import account_claim


@receiver(user_logged_in)
def claim(sender: type, request: HttpRequest, user: AbstractBaseUser, **kwargs) -> None:
    visitor_id = getattr(request, "visitor_id", None)
    if visitor_id:
        account_claim(user=user, visitor_id=visitor_id)
