"""Makes an API key for scripts and prints it once."""

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

from playground.api.services import key_create


class Command(BaseCommand):
    help = "Print a new API key of a user. It is shown this once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--user", required=True, metavar="NAME", help="user name or e-mail address")
        parser.add_argument("--name", default="command line", help="what the key is for")
        parser.add_argument("--expires", type=int, metavar="DAYS", help="days until it expires; never without it")

    def handle(self, *args, user: str, name: str, expires: int | None, **options) -> None:
        users = get_user_model().objects
        found = users.filter(username=user).first() or users.filter(email__iexact=user).first()
        if found is None:
            raise CommandError(f"There is no user '{user}'. `python manage.py createsuperuser` makes one.")
        if expires is not None and not 1 <= expires <= 3650:
            raise CommandError(f"--expires must lie between 1 and 3,650 days; got {expires}.")
        _, secret = key_create(user=found, name=name[:100], expires_in_days=expires)
        self.stdout.write(secret)
