"""What a caller asks for and what it gets back: sampling parameters, requests, events, usage, timings."""

from dataclasses import dataclass, field

from engine.errors import InvalidRequest

MAX_STOP_STRINGS = 8
MAX_STOP_CHARS = 256
MAX_LOGPROBS = 20
MAX_SCORED_TOKENS = 1024  # of a prompt with prompt_logprobs: it is read at once, with the logits of every position


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. ``temperature`` 0 is greedy (lowest id wins a tie).

    Filters apply in the usual order: temperature, top-k, top-p, min-p. 0 (top_k), 1.0 (top_p) and 0.0 (min_p) switch a
    filter off. ``seed`` None draws a fresh one. ``max_tokens`` None means up to the end of the context.
    Raises InvalidRequest with the offending value and its limit.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: off; n: log-probability of the chosen token and of the n best
    prompt_logprobs: bool = False  # of the prompt's tokens too, before the first Delta; needs logprobs

    def __post_init__(self):
        _check_range("Temperature", self.temperature, 0.0, 2.0)
        _check_whole("Top-k", self.top_k, 0, 1_000_000)
        _check_range("Top-p", self.top_p, 0.0, 1.0)
        _check_range("Min-p", self.min_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequest("Top-p must be greater than 0 and at most 1; got 0.")
        if self.max_tokens is not None:
            _check_whole("Max tokens", self.max_tokens, 1, 1_000_000)
        if self.seed is not None:
            _check_whole("Seed", self.seed, 0, 2**63 - 1)
        if self.logprobs is not None:
            _check_whole("Logprobs", self.logprobs, 0, MAX_LOGPROBS)
        elif self.prompt_logprobs:
            raise InvalidRequest("Log-probabilities of the prompt need logprobs.")
        if not isinstance(self.stop, tuple | list) or not all(isinstance(stop, str) for stop in self.stop):
            raise InvalidRequest(f"Stop strings must be a tuple of strings; got {self.stop!r}.")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"At most {MAX_STOP_STRINGS} stop strings are taken; got {len(self.stop)}.")
        for stop in self.stop:
            if not 1 <= len(stop) <= MAX_STOP_CHARS:
                raise InvalidRequest(f"A stop string must have 1 to {MAX_STOP_CHARS} characters; got {len(stop)}.")


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidRequest(f"{name} must lie between {low:,} and {high:,}; got {value!r}.")


def _check_whole(name: str, value: int, low: int, high: int) -> None:
    _check_range(name, value, low, high)
    if not isinstance(value, int):
        raise InvalidRequest(f"{name} must be a whole number; got {value!r}.")


@dataclass(frozen=True)
class GenerationRequest:
    """One generation. Exactly one of ``messages`` (chat), ``prompt`` (raw text) and ``prompt_ids`` is given."""

    request_id: str
    sampling: SamplingParams = field(default_factory=SamplingParams)
    messages: list[dict[str, str]] | None = None  # [{"role": "system|user|assistant", "content": str}]
    prompt: str | None = None
    prompt_ids: list[int] | None = None


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Timings:
    """Milliseconds on the engine's monotonic clock, from the moment the engine received the request.

    ``decode_tokens_per_s`` = (completion tokens - 1) / (time of last token - time of first token); None below two tokens.
    """

    queue_ms: float
    ttft_ms: float | None
    total_ms: float
    decode_tokens_per_s: float | None


@dataclass(frozen=True)
class Progress:
    """Long work before an engine is ready. ``stage``: download, load, compile, warmup. ``fraction`` 0..1."""

    stage: str
    fraction: float
    detail: str


@dataclass(frozen=True)
class Started:
    """The request left the engine's own queue."""

    prompt_tokens: int


@dataclass(frozen=True)
class PrefillProgress:
    tokens_done: int
    tokens_total: int


@dataclass(frozen=True)
class TokenLogprob:
    """``logprob`` None: the first token of a prompt, which follows nothing."""

    token_id: int
    text: str
    logprob: float | None
    top: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True)
class PromptLogprobs:
    """Of every token of the prompt, when they were asked for."""

    tokens: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Delta:
    """Text that became final. Never half a UTF-8 character, never part of a stop string.

    ``token_ids`` are the tokens generated since the last delta (their text may still be held back);
    ``elapsed_ms``: engine clock at the last of them, since the request was received. ``points``: when a delta holds several
    tokens, (count, elapsed_ms) of each step that made some, in order.
    """

    text: str
    token_ids: tuple[int, ...]
    elapsed_ms: float
    logprobs: tuple[TokenLogprob, ...] = ()
    points: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Done:
    """``finish_reason``: stop (end id or stop string), length, cancelled."""

    finish_reason: str
    usage: Usage
    timings: Timings


@dataclass(frozen=True)
class Failed:
    """The generation ended with an error; what was made is kept. ``code`` is an EngineError code."""

    code: str
    message: str
    usage: Usage
    timings: Timings


Event = Started | PrefillProgress | PromptLogprobs | Delta | Done | Failed
