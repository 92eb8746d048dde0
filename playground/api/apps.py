from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "playground.api"
    verbose_name = "API"
