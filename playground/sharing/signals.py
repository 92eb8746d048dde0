"""A link dies with its chat or its owner, whichever way those are deleted."""

from django.contrib.auth import get_user_model
from django.db.models.signals import pre_delete
from django.dispatch import receiver

from playground.chat.models import Conversation
from playground.identity import Owner
from playground.sharing import services
from playground.sharing.models import ShareLink


@receiver(pre_delete, sender=Conversation)
def conversation_deleted(sender: type, instance: Conversation, **kwargs) -> None:
    for link in ShareLink.objects.existing().filter(conversation=instance):
        services.link_delete(link=link)


@receiver(pre_delete, sender=get_user_model())
def user_deleted(sender: type, instance, **kwargs) -> None:
    services.links_delete_of(owner=Owner(user=instance))
