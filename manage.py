#!/usr/bin/env python
"""Django's command line for the playground. What commands need and do not find is one line."""

import os
import sys

import redis

NO_TABLES = "error: The database has no tables yet. Start the playground once (make run), or make them: python manage.py migrate"


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "playground.settings")
    from django.conf import settings
    from django.core.management import execute_from_command_line
    from django.db import OperationalError, ProgrammingError

    from playground.config import without_password

    try:
        execute_from_command_line(sys.argv)
    except redis.ConnectionError:
        address = without_password(settings.REDIS_URL)
        sys.exit(f"error: Redis at {address} does not answer. Start the playground (make run), or set REDIS_URL to a server that runs.")
    except (OperationalError, ProgrammingError) as error:
        if not any(words in str(error) for words in ("no such table", "does not exist")):
            raise
        sys.exit(NO_TABLES)


if __name__ == "__main__":
    main()
