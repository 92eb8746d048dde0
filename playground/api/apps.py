from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "playground.api"
    verbose_name = "API"

    def ready(self) -> None:
        from playground.api import signals  # noqa: F401
