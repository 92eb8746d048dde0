"""Roll up ended generations into hours and days."""

import time

from django.core.management.base import BaseCommand, CommandError, CommandParser

from playground.usage.services import rollup_check, rollup_rebuild, rollup_update


class Command(BaseCommand):
    help = "Roll up usage since the last time."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--rebuild", action="store_true", help="Make every rollup again from the rows.")
        parser.add_argument("--check", action="store_true", help="Afterwards compare every sum with the rows; fails when one differs.")

    def handle(self, *args, rebuild: bool, check: bool, **options) -> None:
        started = time.monotonic()
        done = f"{rollup_rebuild():,} generations" if rebuild else f"{rollup_update(force=True):,} hours"
        self.stdout.write(f"Rolled up {done} in {time.monotonic() - started:.1f} s.")
        if check:
            self._check()

    def _check(self) -> None:
        accounts = rollup_check()
        self.stdout.write(f"{'':<30}{'rows':>15}{'hours':>15}{'days':>15}")
        for a in accounts:
            self.stdout.write(f"{a.name:<30}{a.rows:>15,}{a.hours:>15,}{a.days:>15,}{'' if a.equal else '  differs'}")
        if not all(a.equal for a in accounts):
            raise CommandError("Rollups and rows differ. Generations that ended meanwhile? Try again, or --rebuild.")
