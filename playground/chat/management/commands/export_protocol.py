"""``python manage.py export_protocol``: write ``docs/protocol.md`` from ``playground.schemas``."""

from django.core.management.base import BaseCommand

from playground.config import BASE_DIR
from playground.protocol import protocol_markdown

PATH = BASE_DIR / "docs" / "protocol.md"


class Command(BaseCommand):
    help = "Write docs/protocol.md from the typed messages. A test fails while it is not current."

    def handle(self, *args, **options) -> None:
        PATH.write_text(protocol_markdown())
        self.stdout.write(f"wrote {PATH.relative_to(BASE_DIR)}")
