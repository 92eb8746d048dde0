from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "playground.accounts"
    verbose_name = "Accounts and access"

    def ready(self) -> None:
        from playground.accounts import signals  # noqa: F401
