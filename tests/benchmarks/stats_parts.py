"""How long each part of the stats page takes after the rollup, on the database of DATABASE_URL or DATA_DIR.

    python manage.py migrate && python manage.py make_demo_usage && python manage.py rollup_usage --rebuild
    python -m tests.benchmarks.stats_parts [--plans]

Median wall time of five and smallest CPU time of this process, in ms. ``--plans`` prints how the database runs each statement.
"""

import argparse
import os
import re
import statistics
import time

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "playground.settings")
django.setup()

from django.db import connection  # noqa: E402

from playground.usage import selectors  # noqa: E402
from playground.usage.api import PARTS  # noqa: E402

RUNS = 5


def queries() -> dict[str, dict]:
    choices = selectors.choices()
    found = {"24 h": {"range": "24h"}, "7 days": {"range": "7d"}, "30 days": {"range": "30d"}}
    found["30 days by week"] = {"range": "30d", "by": "week"}
    found["7 days, one model"] = {"range": "7d", "model": choices["models"][0]}
    found["7 days, one user"] = {"range": "7d", "user": choices["users"][0]["id"]}
    return found


def timed(part: str, params: dict) -> str:
    walls, cpus = [], []
    for _ in range(RUNS):
        wall, cpu = time.perf_counter(), time.process_time()
        PARTS[part](selectors.query_from(params))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return f"{1000 * statistics.median(walls):.0f} / {1000 * min(cpus):.0f}"


def plans(part: str, params: dict) -> list[str]:
    """One plan for each statement of a part, shortened to tables and indexes."""
    statements = []

    def note(execute, sql, values, many, context):
        statements.append((sql, values))
        return execute(sql, values, many, context)

    with connection.execute_wrapper(note):
        PARTS[part](selectors.query_from(params))
    out = []
    with connection.cursor() as cursor:
        for sql, values in statements:
            cursor.execute(("EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN (ANALYZE, COSTS OFF) ") + sql, values)
            lines = [str(row[-1]) for row in cursor.fetchall()]
            out.append(re.sub(r"\s+", " ", " | ".join(lines)))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", action="store_true")
    asked = queries()
    if parser.parse_args().plans:
        for part in PARTS:
            for plan in dict.fromkeys(plans(part, asked["30 days"])):
                print(f"{part}: {plan}")
        return
    print(f"| part | {' | '.join(asked)} |\n|---|{'---|' * len(asked)}")
    for part in PARTS:
        print(f"| {part} | {' | '.join(timed(part, params) for params in asked.values())} |", flush=True)


if __name__ == "__main__":
    main()
