"""``python manage.py engine_worker``: a Celery worker that owns this machine's engines."""

import logging
import signal
import sys

from celery.signals import worker_shutting_down
from django.core.management.base import BaseCommand, CommandError

from playground import streams
from playground.celery import app
from playground.chat import runner
from playground.config import config
from playground.engine_client import EnginePool, gpu_count, parse_pool
from playground.exceptions import InvalidParameter

log = logging.getLogger(__name__)


class Command(BaseCommand):
    help = "Load the engines of ENGINE_POOL and answer the queue with them, one thread for each engine."

    def handle(self, *args, **options) -> None:
        try:
            layout = parse_pool(config.engine_pool, 0 if config.engine_pool == "cpu" else gpu_count())
        except InvalidParameter as error:
            raise CommandError(error.message) from None
        streams.be_patient()
        app.conf.broker_transport_options.pop("socket_timeout")  # a task must not be handed to a connection that was given up
        if not config.redis_url:  # one that is configured may still be starting
            streams.client().ping()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # Celery sets its own once it runs
        pool = runner.pool = EnginePool(layout)
        worker_shutting_down.connect(lambda **_: pool.interrupt_all(), weak=False)
        try:
            pool.start()
            pool.wait_ready()  # tasks stay at the broker until an engine can take them
            app.worker_main(
                [
                    "worker",
                    f"--concurrency={len(layout)}",
                    "--queues=generate",
                    f"--hostname={pool.worker_id}",
                    f"--loglevel={config.log_level}",
                    "--without-gossip",
                    "--without-mingle",
                    "--without-heartbeat",
                ]
            )
        finally:
            pool.close()
