"""Delete texts that are older than the site settings keep them."""

from django.core.management.base import BaseCommand

from playground.usage.services import retention_apply


class Command(BaseCommand):
    help = "Delete chats older than 'keep texts for (days)' of the site settings. Usage figures stay."

    def handle(self, *args, **options) -> None:
        self.stdout.write(f"Deleted {retention_apply():,} chats.")
