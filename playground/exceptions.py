"""Errors that a caller of the playground can meet. HTTP, WebSocket and task edges send their ``body``: ``{code, message, details?}``."""

import math


class PlaygroundError(Exception):
    """``code`` is stable and machine-readable, ``status`` the HTTP status, the message is for people.

    ``details`` holds the names and numbers of the message, for a client that says it in another language.
    """

    code = "error"
    status = 400

    def __init__(self, message: str, **details: str | float):
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def body(self) -> dict:
        return {"code": self.code, "message": self.message} | ({"details": self.details} if self.details else {})


class Malformed(PlaygroundError):
    """The frame or body is no JSON, or not of the documented shape."""

    code = "malformed"


class InvalidParameter(PlaygroundError):
    """A parameter is out of range; names it and its limits."""

    code = "invalid_request"


class EmptyPrompt(PlaygroundError):
    """There is nothing to answer."""

    code = "empty_prompt"


class PromptTooLong(PlaygroundError):
    """The prompt does not fit the context; carries both numbers. ``at_least``: it has still more tokens, which nobody counted."""

    code = "prompt_too_long"

    def __init__(self, *, prompt_tokens: int, context_tokens: int, model: str, at_least: bool = False):
        self.prompt_tokens, self.context_tokens = prompt_tokens, context_tokens
        over = max(1, prompt_tokens - context_tokens)  # a prompt that fills the context leaves no room for an answer
        more = "at least " if at_least else ""
        super().__init__(
            f"This prompt has {more}{prompt_tokens:,} tokens; {model} takes {context_tokens:,}. Shorten it by {more}{over:,}.",
            prompt_tokens=prompt_tokens,
            context_tokens=context_tokens,
            model=model,
            over=over,
            **({"bound": "at_least"} if at_least else {}),
        )


class EngineRefused(PlaygroundError):
    """The engine does not take this prompt or model; carries the engine's own code and words."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class MessageTooLarge(PlaygroundError):
    """A frame or body over the byte limit."""

    code = "message_too_large"
    status = 413

    def __init__(self, *, size_bytes: int, limit_bytes: int):
        mb = math.ceil(size_bytes / 1e5) / 10
        super().__init__(f"This message is {mb} MB; the limit is {limit_bytes / 1e6:g} MB.", mb=mb, limit=limit_bytes / 1e6)


class UnknownModel(PlaygroundError):
    """No such model is served here."""

    code = "unknown_model"
    status = 404

    def __init__(self, *, model: str, served: int):
        super().__init__(f"There is no model '{model[:100]}' here. Choose one of {served}.", model=model[:100], served=served)


class NotFound(PlaygroundError):
    """The object does not exist or belongs to somebody else."""

    code = "not_found"
    status = 404


class QueueFull(PlaygroundError):
    code = "queue_full"
    status = 503

    def __init__(self):
        super().__init__("All engines are busy and the queue is full. Nothing was sent.")


class TooManyRequests(PlaygroundError):
    """A rate limit or quota (``limited``: requests, tokens, concurrent, copies or keys); the message says when it is free again."""

    code = "rate_limited"
    status = 429

    def __init__(self, message: str, retry_after_s: float = 1.0, limited: str = "requests", **details: str | float):
        super().__init__(message, retry_after_s=retry_after_s, limited=limited, **details)
        self.retry_after_s = retry_after_s
        self.limited = limited


class Unavailable(PlaygroundError):
    """Redis or the database does not answer."""

    code = "unavailable"
    status = 503


class SignInRequired(PlaygroundError):
    """The site is for signed-in users only."""

    code = "sign_in_required"
    status = 401


class SharingOff(PlaygroundError):
    """An admin has switched demo links off."""

    code = "sharing_off"
    status = 403

    def __init__(self):
        super().__init__("Sharing is switched off on this site. Nothing was shared.")


class LinkGone(PlaygroundError):
    """Expired, revoked or deleted: nothing of the content is said."""

    code = "gone"
    status = 410

    def __init__(self):
        super().__init__("This demo is no longer available.")
