"""The OpenAI-compatible bodies, typed once: what is taken, what is harmless, what is refused. Served as OpenAPI.

A field that this engine cannot honour may only hold the value that asks for nothing; anything else is refused by name.
"""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from playground.schemas import MAX_MESSAGES, MAX_SEED, MAX_STOP_STRINGS, StopString, Strict, Text

MAX_CHOICES = 8
MAX_TOP_LOGPROBS = 20
MAX_TEXT_LOGPROBS = 5  # of /v1/completions, as OpenAI's
DEFAULT_TEXT_TOKENS = 16  # of /v1/completions, as OpenAI's

Int = Annotated[int, BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)]  # 3.0 too
Zero = Annotated[float, Field(ge=0, le=0)]
Empty = Annotated[list[None], Field(max_length=0)]
TokenIds = Annotated[list[Annotated[Int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1)]


class Asked(BaseModel):
    """No coercion: "0.5" is no temperature."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answered(BaseModel):
    model_config = ConfigDict(extra="forbid")


# Requests --------------------------------------------------------------------------------------------------------------


class StreamOptions(Asked):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Common(Asked):
    model: str = Field(min_length=1, max_length=200)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False, description="Default 1; 0 is greedy.")
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_k: Int | None = Field(None, ge=0, le=1_000_000, description="Extra field; 0 switches it off.")
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False, description="Extra field; 0 switches it off.")
    max_tokens: Int | None = Field(None, ge=1, le=1_000_000)
    seed: Int | None = Field(None, ge=0, le=MAX_SEED, description="Choice i of several is drawn with seed + i.")
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    n: Int | None = Field(None, ge=1, le=MAX_CHOICES)
    user: Text | None = Field(None, max_length=256, description="Whom you ask for; kept with the request.")
    # Harmless or refused
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None


class TextPart(Asked):
    type: Literal["text"]
    text: Text


class Message(Asked):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]
    name: str | None = Field(None, description="Ignored: chat templates have no names.")
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Empty | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class TextFormat(Asked):
    type: Literal["text"]


class ChatRequest(Common):
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: Int | None = Field(
        None, ge=1, le=1_000_000, description="Comes before max_tokens. Neither: to the end of the context."
    )
    logprobs: bool | None = None
    top_logprobs: Int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS, description="Needs logprobs.")
    # Harmless or refused
    tools: Empty | None = None
    functions: Empty | None = None
    tool_choice: Literal["none", "auto"] | None = None
    function_call: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | None = None
    modalities: list[Literal["text"]] | None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class CompletionRequest(Common):
    prompt: Text | TokenIds | Annotated[list[Text], Field(min_length=1)] | Annotated[list[TokenIds], Field(min_length=1)]
    echo: bool | None = None
    logprobs: Int | None = Field(None, ge=0, le=MAX_TEXT_LOGPROBS)
    # Harmless or refused
    best_of: Annotated[Int, Field(ge=1, le=1)] | None = None
    suffix: None = None


# Answers ---------------------------------------------------------------------------------------------------------------


class ErrorOut(Answered):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(Answered):
    error: ErrorOut


class ModelOut(Answered):
    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix seconds; 0: unknown.")
    owned_by: str
    context_tokens: int | None


class ModelList(Answered):
    object: Literal["list"] = "list"
    data: list[ModelOut]


class UsageOut(Answered):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TimingsOut(Answered):
    """Milliseconds. ``queue_ms``: from acceptance to the engine; the others on the engine's clock."""

    queue_ms: float | None
    ttft_ms: float | None
    total_ms: float | None
    decode_tokens_per_s: float | None


class TopLogprob(Answered):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answered):
    content: list[TokenLogprob]
    refusal: None = None


class ChatAnswer(Answered):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Answered):
    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(Answered):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageOut
    timings: TimingsOut = Field(description="Of the choice that ended last.")


class TextLogprobs(Answered):
    tokens: list[str]
    token_logprobs: list[float | None] = Field(description="Null for a prompt's first token.")
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Answered):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(Answered):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageOut
    timings: TimingsOut = Field(description="Of the choice that ended last.")


# Keys, for the browser -------------------------------------------------------------------------------------------------


class KeyIn(Strict):
    name: Text = Field(min_length=1, max_length=100)
    scopes: list[Literal["models", "generate"]] | None = Field(None, min_length=1, description="Null: all.")
    expires_in_days: int | None = Field(None, ge=1, le=3650, description="Null: never.")


class KeyOut(Strict):
    id: UUID
    name: str
    prefix: str
    scopes: list[str]
    state: Literal["live", "expired", "revoked"]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class KeyMade(KeyOut):
    secret: str = Field(description="Shown this once.")


class KeyPage(Strict):
    items: list[KeyOut]
