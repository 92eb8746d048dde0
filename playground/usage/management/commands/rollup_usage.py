"""Roll up ended generations into hours and days."""

import time

from django.core.management.base import BaseCommand, CommandParser

from playground.usage.services import rollup_rebuild, rollup_update


class Command(BaseCommand):
    help = "Roll up usage since the last time; --rebuild makes every rollup again from the rows."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--rebuild", action="store_true")

    def handle(self, *args, rebuild: bool, **options) -> None:
        started = time.monotonic()
        done = f"{rollup_rebuild():,} generations" if rebuild else f"{rollup_update(force=True):,} hours"
        self.stdout.write(f"Rolled up {done} in {time.monotonic() - started:.1f} s.")
