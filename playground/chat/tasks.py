"""The one task: take a generation to an engine."""

from uuid import UUID

from celery import shared_task

from playground.chat.runner import generation_run


@shared_task(name="generate", ignore_result=True, acks_late=False)
def generate(generation_id: str) -> None:
    generation_run(UUID(generation_id))
