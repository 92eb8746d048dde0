"""Named errors of the engine. Every error that a caller can meet has a stable ``code``."""


class EngineError(Exception):
    """Base of all engine errors. ``code`` is stable and machine-readable; the message is for people."""

    code = "engine_error"


class InvalidRequest(EngineError, ValueError):
    """The caller's mistake: names the value and the limit."""

    code = "invalid_request"


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the context; carries both numbers."""

    code = "prompt_too_long"

    def __init__(self, prompt_tokens: int, context_tokens: int, model: str):
        self.prompt_tokens, self.context_tokens = prompt_tokens, context_tokens
        super().__init__(
            f"This prompt has {prompt_tokens:,} tokens; {model} takes {context_tokens:,}. Shorten it by {prompt_tokens - context_tokens:,}."
        )


class ModelError(EngineError):
    """A model file is missing, broken, or of a kind the engine does not run; names file, tensor and shapes."""

    code = "model_error"


class UnknownModel(ModelError):
    """No such model in the registry, on disk or (where there is a network) on the hub."""

    code = "unknown_model"


class DeviceError(EngineError):
    """The device is missing, out of memory, or failed while running."""

    code = "device_error"


class NumericalError(EngineError):
    """NaN or infinity in the hidden state or the logits."""

    code = "invalid_numbers"


class EngineStopped(EngineError):
    """The engine process went away or was closed while a request was running."""

    code = "engine_stopped"
