"""Everything that writes accounts."""

from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from playground.chat.models import Conversation, Generation
from playground.chat.services import conversations_delete, generation_cancel
from playground.identity import Owner


@transaction.atomic
def account_claim(*, user: AbstractBaseUser, visitor_id: UUID) -> int:
    """Make a visitor's chats, answers and links the user's own. The number of chats."""
    from playground.sharing.models import ShareLink
    from playground.usage.services import rollups_outdate

    rollups_outdate(Generation.objects.filter(visitor_id=visitor_id, user=None))
    chats = Conversation.objects.filter(visitor_id=visitor_id, user=None).update(user=user, visitor_id=None)
    Generation.objects.filter(visitor_id=visitor_id, user=None).update(user=user, visitor_id=None)
    ShareLink.objects.filter(visitor_id=visitor_id, user=None).update(user=user, visitor_id=None)
    return chats


def account_delete(*, user: AbstractBaseUser) -> None:
    """Stop what runs, delete chats, links and keys. Usage figures stay, without a name and without texts."""
    from playground.sharing.services import links_delete_of

    owner = Owner(user=user)
    for generation in Generation.objects.owned_by(owner).active():
        generation_cancel(generation=generation)
    links_delete_of(owner=owner)
    conversations_delete(owner=owner)
    Generation.objects.filter(user=user).update(request={}, system_prompt="", end_user="")
    user.delete()


def user_block(*, user: AbstractBaseUser) -> None:
    """No sign-in and no key works any more; what runs is stopped. Chats and links stay."""
    user.is_active = False
    user.save(update_fields=["is_active"])
    for generation in Generation.objects.owned_by(Owner(user=user)).active():
        generation_cancel(generation=generation)


def user_unblock(*, user: AbstractBaseUser) -> None:
    user.is_active = True
    user.save(update_fields=["is_active"])
