"""Messages of the WebSocket protocol v1 and of the browser's HTTP API, typed once. Exported to ``docs/protocol.md``."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

MAX_STOP_STRINGS = 8
MAX_STOP_CHARS = 256
MAX_MESSAGES = 50_000  # of a prompt; how long it may be is for its model to say
MAX_SEED = 2**53 - 1  # what JavaScript holds exactly
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]  # databases hold no NUL in texts
Title = Annotated[Text, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
StopString = Annotated[Text, Field(min_length=1, max_length=MAX_STOP_CHARS)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


# What a client sends ---------------------------------------------------------------------------------------------------


class Params(Strict):
    """How tokens are chosen. 0 (temperature) is greedy; 0 (top_k), 1 (top_p) and 0 (min_p) switch a filter off.

    No coercion: "0.5" is no temperature.
    """

    model_config = ConfigDict(strict=True)

    model: str = Field("", max_length=200, description="Empty: the default model.")
    temperature: float = Field(0.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=1_000_000)
    min_p: float = Field(0.0, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1, le=1_000_000, description="Null: up to the end of the context.")
    seed: int | None = Field(None, ge=0, le=MAX_SEED, description="Null: a fresh one.")
    stop: list[StopString] = Field(default_factory=list, max_length=MAX_STOP_STRINGS)


class ChatMessage(Strict):
    role: Literal["system", "user", "assistant"]
    content: Text


class Generate(Strict):
    """Answer ``messages``, whose last one is the user's. The server stores that one under ``parent_id``."""

    type: Literal["generate"]
    request_id: str = Field(min_length=1, max_length=100, description="The client's own name for this request.")
    conversation_id: UUID | None = Field(None, description="Null: a new conversation.")
    parent_id: UUID | None = Field(None, description="Message under which the new user message hangs.")
    user_message_id: UUID | None = Field(None, description="Regenerate: answer this stored message again.")
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES, description="What the model sees.")
    params: Params = Field(default_factory=Params)


class Stop(Strict):
    type: Literal["stop"]
    generation_id: UUID


class Resume(Strict):
    """Send everything after ``last_event_id`` ("0": from the start), then go on live."""

    type: Literal["resume"]
    generation_id: UUID
    last_event_id: str = Field("0", max_length=40)


class Ack(Strict):
    """The client has drawn everything up to ``event_id``."""

    type: Literal["ack"]
    generation_id: UUID
    event_id: str = Field(max_length=40)


ClientFrame = Annotated[Generate | Stop | Resume | Ack, Field(discriminator="type")]
client_frames: TypeAdapter[Generate | Stop | Resume | Ack] = TypeAdapter(ClientFrame)


Details = Annotated[dict[str, str | int | float], Field(description="Names and numbers of the message, to say it in another language.")]

# What the server sends -------------------------------------------------------------------------------------------------


class Usage(Strict):
    prompt_tokens: int
    completion_tokens: int


class Timings(Strict):
    """Milliseconds. ``queue_ms``: from acceptance to the engine; the others on the engine's clock."""

    queue_ms: float | None
    ttft_ms: float | None
    total_ms: float | None
    decode_tokens_per_s: float | None


class Accepted(Strict):
    type: Literal["accepted"]
    generation_id: UUID
    request_id: str
    conversation_id: UUID | None
    user_message_id: UUID | None
    assistant_message_id: UUID | None


class Queued(Strict):
    type: Literal["queued"]
    generation_id: UUID
    position: int = Field(description="1: next.")


class Loading(Strict):
    """No engine is ready yet; the request waits."""

    type: Literal["loading"]
    generation_id: UUID
    fraction: float
    detail: str


class Started(Strict):
    type: Literal["started"]
    generation_id: UUID
    event_id: str
    prompt_tokens: int
    queue_ms: float


class Prefill(Strict):
    type: Literal["prefill"]
    generation_id: UUID
    event_id: str
    done: int
    total: int


class Delta(Strict):
    """``elapsed_ms``: engine clock at the last of ``tokens``, since the engine received the request."""

    type: Literal["delta"]
    generation_id: UUID
    event_id: str
    text: str
    tokens: int
    elapsed_ms: float
    points: list[tuple[int, float, int]] | None = Field(
        None, description="[[tokens, elapsed_ms, characters], ...] of the deltas merged into this one."
    )


class Done(Strict):
    type: Literal["done"]
    generation_id: UUID
    event_id: str
    finish_reason: Literal["stop", "length", "cancelled", "interrupted"]
    usage: Usage
    timings: Timings


class Error(Strict):
    """With ``event_id`` the error ended a generation (what was made is kept); without, it refused one frame."""

    type: Literal["error"]
    generation_id: UUID | None
    code: str
    message: str
    details: Details | None = None
    request_id: str | None = None
    event_id: str | None = None


ServerFrame = Annotated[
    Accepted | Queued | Loading | Started | Prefill | Delta | Done | Error,
    Field(discriminator="type"),
]
server_frames: TypeAdapter[BaseModel] = TypeAdapter(ServerFrame)


# HTTP ------------------------------------------------------------------------------------------------------------------


class ErrorBody(Strict):
    code: str
    message: str
    details: Details | None = None


class ModelCard(Strict):
    """One model served, with the engine that runs it. Null: not known before an engine has loaded it."""

    name: str
    title: str
    context_tokens: int | None = None
    parameters: int | None = None
    precision: str | None = None
    device: str | None = None
    gpus: int = 0
    backend: str | None = None
    bytes_per_token: int | None = None
    bound_tokens_per_s: float | None = None
    datasheet_bytes_per_s: float | None = None
    measured_bytes_per_s: float | None = None
    ready: bool = False
    engines: int = Field(0, description="Engines that can answer with it; each answers one request at a time.")
    driver: str | None = None


class GenerationOut(Strict):
    id: UUID
    state: Literal["queued", "running", "done", "stopped", "interrupted", "failed"]
    model: str
    params: dict
    system_prompt: str
    usage: Usage
    timings: Timings
    error: ErrorBody | None
    finish_reason: str
    text: str = Field(description="All text so far; its last event is last_event_id.")
    last_event_id: str
    points: list[tuple[int, float, int]] = Field(
        description="[[tokens, elapsed_ms, characters], ...] of the deltas, for the curve and the time of each line."
    )


class MessageOut(Strict):
    id: UUID
    parent_id: UUID | None
    role: Literal["user", "assistant"]
    content: Text
    created_at: datetime
    generation: GenerationOut | None


class ConversationOut(Strict):
    id: UUID
    title: str
    messages: list[MessageOut]


class ConversationItem(Strict):
    id: UUID
    title: str
    updated_at: datetime
    decode_tokens_per_s: float | None = Field(description="Of the last answer.")
    state: str | None = Field(description="Of the last answer.")


class ConversationPage(Strict):
    items: list[ConversationItem]
    next: str | None = Field(description="Give it as `before` for the next page.")


class ConversationPatch(Strict):
    title: Title
