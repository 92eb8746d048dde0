from django.apps import AppConfig


class UsageConfig(AppConfig):
    name = "playground.usage"
    verbose_name = "Usage"
