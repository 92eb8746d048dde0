from django.apps import AppConfig


class UsageConfig(AppConfig):
    name = "playground.usage"
    verbose_name = "Usage"

    def ready(self) -> None:
        from playground.usage import signals  # noqa: F401
