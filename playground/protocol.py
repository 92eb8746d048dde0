"""The protocol as a document: the schemas of ``playground.schemas`` with their docstrings."""

import json

from pydantic import BaseModel

from playground import schemas

CLIENT = (schemas.Generate, schemas.Stop, schemas.Resume, schemas.Ack)
SERVER = (
    schemas.Accepted,
    schemas.Queued,
    schemas.Loading,
    schemas.Started,
    schemas.Prefill,
    schemas.Delta,
    schemas.Done,
    schemas.Error,
)
HTTP = (
    schemas.ModelCard,
    schemas.ConversationPage,
    schemas.ConversationOut,
    schemas.ConversationPatch,
    schemas.GenerationOut,
    schemas.ErrorBody,
)

HEAD = """# Protocol

Made from `playground/schemas.py` by `python manage.py export_protocol`; do not edit. How the messages are used: `docs/architecture.md`.

The socket is `/ws/playground/`: JSON text frames, version 1. A generation's events carry increasing `event_id`s; a client that
resumes from the last one it has loses and repeats nothing.

Error codes: `malformed`, `invalid_request`, `empty_prompt`, `prompt_too_long`, `message_too_large`, `unknown_model`, `not_found`,
`queue_full`, `rate_limited`, `unavailable`, `error`; an error that ends a generation (it has an `event_id`) carries the engine's
code (`device_error`, `invalid_numbers`, ...), `internal` or `not_stored`.
"""


def protocol_markdown() -> str:
    parts = [HEAD]
    for title, models in (("Client frames", CLIENT), ("Server frames", SERVER), ("HTTP bodies", HTTP)):
        parts.append(f"\n## {title}\n")
        parts += [_section(model) for model in models]
    return "".join(parts)


def _section(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    schema.pop("description", None)
    schema.pop("title", None)
    name = model.model_fields["type"].annotation.__args__[0] if "type" in model.model_fields else model.__name__
    text = " ".join((model.__doc__ or "").split())
    return f"\n### {name}\n\n{text}\n\n```json\n{json.dumps(schema, indent=1)}\n```\n".replace("\n\n\n", "\n\n")
