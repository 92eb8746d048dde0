"""Hours that changed hands, and, beside the rollups that there are, those for all models and sources together."""

from collections import defaultdict

from django.db import migrations, models

SUMS = ("requests", "done", "stopped", "interrupted", "failed", "prompt_tokens", "completion_tokens")
TALLIES = ("errors", "finishes", "queue", "ttft", "total", "rate")


def add_totals(apps, schema_editor) -> None:
    rollup = apps.get_model("usage", "UsageRollup")
    totals = {}
    parts = rollup.objects.filter(models.Q(kind="all") | models.Q(kind="visitor", period="day"))
    for row in parts.values("kind", "subject", "period", "start", *SUMS, *TALLIES).iterator():
        at = ("total" if row["kind"] == "all" else "visitor", row["subject"], row["period"], row["start"])
        total = totals.setdefault(at, dict.fromkeys(SUMS, 0) | {name: defaultdict(int) for name in TALLIES})
        for name in SUMS:
            total[name] += row[name]
        for name in TALLIES:
            for key, count in row[name].items():
                total[name][key] += count
    rollup.objects.bulk_create(
        [
            rollup(kind=kind, subject=subject, period=period, start=start, **total)
            for (kind, subject, period, start), total in totals.items()
        ],
        batch_size=2000,
    )


class Migration(migrations.Migration):
    dependencies = [
        ("usage", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="StaleHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("start", models.DateTimeField()),
            ],
        ),
        migrations.AddField(
            model_name="usagerollup",
            name="peak_waiting",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name="usagerollup",
            name="kind",
            field=models.CharField(
                choices=[
                    ("total", "Total"),
                    ("all", "All"),
                    ("user", "User"),
                    ("visitor", "Visitor"),
                    ("key", "Key"),
                    ("link", "Link"),
                    ("engine", "Engine"),
                ],
                max_length=8,
            ),
        ),
        migrations.RunPython(
            add_totals, lambda apps, schema_editor: apps.get_model("usage", "UsageRollup").objects.filter(model="", source="").delete()
        ),
    ]
