"""Forms that differ from django-allauth's."""

from allauth.account.forms import AddEmailForm as AllauthAddEmailForm
from allauth.account.internal.flows.email_verification import send_verification_email_to_address
from allauth.account.models import EmailAddress
from django.http import HttpRequest


class AddEmailForm(AllauthAddEmailForm):
    """The present address stays in use until the new one is confirmed, also when it was never confirmed itself."""

    def save(self, request: HttpRequest) -> EmailAddress:
        addresses = EmailAddress.objects.filter(user=self.user, verified=False)
        addresses.exclude(email__iexact=self.user.email).delete()
        address, _ = EmailAddress.objects.get_or_create(user=self.user, email=self.cleaned_data["email"].lower())
        send_verification_email_to_address(request, address)
        return address
