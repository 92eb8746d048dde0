"""The two forms of an answer, chat and text: from a request to jobs, and from stream frames to choices."""

from uuid import UUID

from playground import engine_client
from playground.api.errors import ApiError
from playground.api.schemas import DEFAULT_TEXT_TOKENS, MAX_CHOICES, ChatRequest, Common, CompletionRequest
from playground.chat.services import Job
from playground.schemas import ChatMessage, Params


class ChatForm:
    """``/v1/chat/completions``"""

    object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(self, body: ChatRequest):
        if body.top_logprobs and not body.logprobs:
            raise ApiError(400, "'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
        if not body.messages[-1].text.strip():
            raise ApiError(400, "The last message is empty.", param="messages")
        self.body = body
        self.model = body.model

    def jobs(self) -> list[Job]:
        messages = [ChatMessage(role="system" if m.role == "developer" else m.role, content=m.text) for m in self.body.messages]
        sampling = {"logprobs": self.body.top_logprobs or 0} if self.body.logprobs else {}
        max_tokens = self.body.max_completion_tokens or self.body.max_tokens
        return [Job(params, messages=messages, sampling=sampling) for params in params_of(self.body, max_tokens)]

    def completion_id(self, generation_id: UUID) -> str:
        return f"chatcmpl-{generation_id.hex}"

    def first(self, index: int) -> dict:
        """The choice of the chunk that opens it."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, text: str, logprobs: list[dict]) -> dict:
        return {"index": index, "delta": {"content": text}, "logprobs": self._logprobs(logprobs), "finish_reason": None}

    def last(self, index: int, finish_reason: str) -> dict:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": finish_reason}

    def whole(self, index: int, text: str, logprobs: list[dict], finish_reason: str) -> dict:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": self._logprobs(logprobs), "finish_reason": finish_reason}

    def _logprobs(self, tokens: list[dict]) -> dict | None:
        if not self.body.logprobs:
            return None
        return {"content": [self._token(token) for token in tokens], "refusal": None}

    def _token(self, token: dict) -> dict:
        top = [self._alternative(*alternative) for alternative in token["top"]]
        return {**self._alternative(token["id"], token["text"], token["logprob"]), "top_logprobs": top}

    def _alternative(self, token_id: int, text: str, logprob: float) -> dict:
        return {"token": text, "logprob": logprob, "bytes": list(engine_client.tokenizer(self.model).token_bytes(token_id))}


class TextForm:
    """``/v1/completions``. Several prompts give their choices one after the other, n for each."""

    object = chunk_object = "text_completion"

    def __init__(self, body: CompletionRequest):
        self._scored = bool(body.echo) and body.logprobs is not None
        self.body = body
        self.model = body.model
        prompt = body.prompt
        self.prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        if "" in self.prompts:
            raise ApiError(400, "The prompt is empty.", param="prompt")
        if len(self.prompts) * (body.n or 1) > MAX_CHOICES:
            raise ApiError(400, f"Prompts times n may be {MAX_CHOICES}; got {len(self.prompts)} times {body.n or 1}.", param="n")

    def jobs(self) -> list[Job]:
        sampling = {} if self.body.logprobs is None else {"logprobs": self.body.logprobs, "prompt_logprobs": self._scored}
        params = params_of(self.body, self.body.max_tokens or DEFAULT_TEXT_TOKENS)
        prompts = [{"prompt": p} if isinstance(p, str) else {"prompt_ids": p} for p in self.prompts]
        return [Job(one, sampling=sampling, **prompt) for prompt in prompts for one in params]

    def completion_id(self, generation_id: UUID) -> str:
        return f"cmpl-{generation_id.hex}"

    def first(self, index: int) -> dict | None:
        """The prompt when it is to be echoed; otherwise nothing opens a choice. A scored one comes with its log-probabilities."""
        return self._choice(index, self.echo(index), None, None) if self.body.echo and not self._scored else None

    def prompt_tokens(self, index: int, tokens: list[dict]) -> list[dict]:
        """The prompt's tokens with their ``start``, counted from the answer's."""
        stream = engine_client.tokenizer(self.model).stream(skip_special=isinstance(self._prompt(index), str))
        starts = [0]
        for token in tokens:
            starts.append(starts[-1] + len(stream.push(token["id"])))
        return [token | {"start": start - starts[-1]} for token, start in zip(tokens, starts, strict=False)]

    def piece(self, index: int, text: str, logprobs: list[dict]) -> dict:
        return self._choice(index, text, self._logprobs(index, logprobs), None)

    def last(self, index: int, finish_reason: str) -> dict:
        return self._choice(index, "", None, finish_reason)

    def whole(self, index: int, text: str, logprobs: list[dict], finish_reason: str) -> dict:
        return self._choice(index, self.echo(index) + text, self._logprobs(index, logprobs), finish_reason)

    def _choice(self, index: int, text: str, logprobs: dict | None, finish_reason: str | None) -> dict:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def echo(self, index: int) -> str:
        if not self.body.echo:
            return ""
        prompt = self._prompt(index)
        return prompt if isinstance(prompt, str) else engine_client.tokenizer(self.model).decode(prompt)

    def _prompt(self, index: int) -> str | list[int]:
        return self.prompts[index // (self.body.n or 1)]

    def _logprobs(self, index: int, tokens: list[dict]) -> dict | None:
        if self.body.logprobs is None:
            return None
        before = len(self.echo(index))
        return {
            "tokens": [self._name(token["id"]) for token in tokens],
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": [before + token["start"] for token in tokens],
        }

    def _top(self, token: dict) -> dict[str, float] | None:
        return None if token["logprob"] is None else {self._name(token_id): logprob for token_id, _, logprob in token["top"]}

    def _name(self, token_id: int) -> str:
        """Its text; of a part of a character, as OpenAI writes it, its bytes."""
        data = engine_client.tokenizer(self.model).token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def params_of(body: Common, max_tokens: int | None) -> list[Params]:
    """One for each of the n choices, with OpenAI's defaults."""
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    first = Params(
        model=body.model,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        min_p=body.min_p or 0.0,
        max_tokens=max_tokens,
        seed=body.seed,
        stop=stop,
    )
    if body.seed is None:
        return [first] * (body.n or 1)
    return [first.model_copy(update={"seed": body.seed + i}) for i in range(body.n or 1)]
