from django.apps import AppConfig


class SharingConfig(AppConfig):
    name = "playground.sharing"
    verbose_name = "Demo links"

    def ready(self) -> None:
        from playground.sharing import signals  # noqa: F401
