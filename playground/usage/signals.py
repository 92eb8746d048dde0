"""The figures of a deleted user lose their name, whichever way it is deleted."""

from django.contrib.auth import get_user_model
from django.db.models.signals import pre_delete
from django.dispatch import receiver

from playground.chat.models import Generation
from playground.usage.services import rollups_outdate


@receiver(pre_delete, sender=get_user_model())
def user_deleted(sender: type, instance, **kwargs) -> None:
    rollups_outdate(Generation.objects.filter(user=instance))
