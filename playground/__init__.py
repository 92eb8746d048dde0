"""The Django project: pages, sockets, tasks. It reaches the engine through ``playground.engine_client`` alone."""

from playground.celery import app as celery_app

__all__ = ["celery_app"]
