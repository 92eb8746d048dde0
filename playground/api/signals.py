"""What a key runs is stopped when it goes, whichever way it is deleted."""

from django.db.models.signals import pre_delete
from django.dispatch import receiver

from playground.api.models import ApiKey
from playground.api.services import key_revoke


@receiver(pre_delete, sender=ApiKey)
def key_deleted(sender: type, instance: ApiKey, **kwargs) -> None:
    key_revoke(key=instance)
