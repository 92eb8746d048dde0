"""The Celery application. One queue, ``generate``; a worker runs one thread per engine."""

import os
from concurrent.futures import Future

from celery import Celery
from celery.concurrency import thread
from kombu.asynchronous import get_event_loop

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "playground.settings")

app = Celery("playground")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


class TaskPool(thread.TaskPool):
    """Threads that wake the worker's event loop at the end of a task. A worker without prefetching asks the broker for the next
    one only when its loop turns; asleep it would leave the engine idle for up to a second."""

    def on_apply(self, *args, **kwargs) -> thread.ApplyResult:
        result = super().on_apply(*args, **kwargs)
        result.f.add_done_callback(_wake_loop)
        return result


def _wake_loop(_: Future) -> None:
    if loop := get_event_loop():  # None once the worker shuts down
        loop.call_soon(lambda: None)
