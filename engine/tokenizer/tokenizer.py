"""One tokenizer for every source. Text that people type is never parsed as markup."""

import re
from collections.abc import Iterable
from functools import cached_property

from engine.errors import InvalidRequest
from engine.tokenizer.chat import ChatTemplate
from engine.tokenizer.detokenizer import DROP, Detokenizer
from engine.tokenizer.spec import BYTE_TOKENS, TokenizerSpec

ROLES = ("system", "user", "assistant")
# Put inside a special token's text, it makes it plain text; the pipeline's normaliser removes it again. Three of Unicode's
# noncharacters, which no text contains.
BREAK = "\ufdd0\ufdd1\ufdd0"
# ``far_over``: where a text is cut, the words and the markup that the cut goes through become more tokens, at most so many.
PART_CHARS, CUT_TOKENS = 100_000, 32
LONG_TOKEN_CHARS = 8  # a text with so many characters a token is counted whole: people want to know by how much it is too long


class Tokenizer:
    """Encoding, decoding and the chat template of one model. Thread-safe."""

    def __init__(self, spec: TokenizerSpec):
        from tokenizers import normalizers

        self._pipeline = spec.pipeline
        self._spec = spec
        own = [spec.pipeline.normalizer] if spec.pipeline.normalizer else []
        self._pipeline.normalizer = normalizers.Sequence([normalizers.Replace(BREAK, ""), *own])
        self.bos_id, self.eos_ids, self.adds_bos = spec.bos_id, spec.eos_ids, spec.adds_bos
        self.vocab_size = max(self._pipeline.get_vocab(with_added_tokens=True).values()) + 1
        hidden = {i: token.content for i, token in self._pipeline.get_added_tokens_decoder().items() if token.special}
        self._hidden_ids = list(hidden)
        self._markup, self._hidden = _starts_of(spec.special), _starts_of(hidden.values())  # in what people type; in what models say

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a text, without BOS. ``special``: the names of special tokens in it are parsed as these tokens.

        Raises InvalidRequest for half a character (a lone surrogate: bytes that were no UTF-8).
        """
        _check_unicode(text)
        return self._pipeline.encode(text if special else self._escape(text, self._markup), add_special_tokens=False).ids

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt: typed text, with BOS in front when the model wants one."""
        return self._with_bos(self.encode(text))

    def render_chat(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> list[int]:
        """Ids of a conversation in the model's own chat template. BOS comes once, from the template or from here.

        Only the template's own markup is parsed as special tokens, never the contents of the messages; but markup that answers
        show, such as </think>, is markup again in an assistant's message, where templates look for it.
        Raises InvalidRequest for messages that the template does not take, ModelError without a usable template.
        """
        return self._with_bos(self.encode(self._escaped_chat(messages, add_generation_prompt), special=True))

    def count(self, messages: list[dict[str, str]]) -> int:
        """Prompt tokens of a conversation."""
        return len(self.render_chat(messages))

    def far_over(self, prompt: str | list[dict[str, str]], limit: int) -> int | None:
        """Tokens that a very long text or conversation has at least, when they are more than ``limit``. None: count it to know.

        Encodes parts of it until that is certain, so that megabytes cost no more than ``limit`` tokens do. Raises InvalidRequest.
        """
        text = self._escape(prompt, self._markup) if isinstance(prompt, str) else self._escaped_chat(prompt)
        if len(text) <= max(PART_CHARS, LONG_TOKEN_CHARS * limit):
            return None
        _check_unicode(text)
        tokens = 0
        for start in range(0, len(text), PART_CHARS):
            part = text[start : start + PART_CHARS]
            tokens += max(0, len(self._pipeline.encode(part, add_special_tokens=False).ids) - CUT_TOKENS)
            if tokens > limit:
                return tokens
        return None

    def chat_text(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as the template writes it, before tokenisation."""
        return self._chat_template().render(messages, add_generation_prompt)

    def decode(self, ids: list[int], *, skip_special: bool = False) -> str:
        """All of ``ids`` at once."""
        stream = self.stream(skip_special=skip_special)
        return "".join(map(stream.push, ids)) + stream.flush()

    def stream(self, *, skip_special: bool = True) -> Detokenizer:
        """A decoder for ids that come one by one."""
        return Detokenizer(self._text_bytes if skip_special else self._all_bytes, self._spec.strips_first_space)

    def token_text(self, token_id: int) -> str:
        """A single token on its own, for display; incomplete characters as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for; b"" outside the vocabulary."""
        return (self._all_bytes[token_id] if 0 <= token_id < self.vocab_size else None) or b""

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            raise InvalidRequest("This model has no chat template; send a plain prompt instead.")
        return self._template

    def _escaped_chat(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        template = self._chat_template()
        for message in messages:
            if message.get("role") not in ROLES:
                raise InvalidRequest(f"A message's role must be system, user or assistant; got {message.get('role')!r}.")
            _check_unicode(message["content"])
        marks = dict.fromkeys(ROLES, self._markup) | {"assistant": self._hidden}
        escaped = [{"role": m["role"], "content": self._escape(m["content"], marks[m["role"]])} for m in messages]
        return template.render(escaped, add_generation_prompt)

    @staticmethod
    def _escape(text: str, markup: re.Pattern | None) -> str:
        return markup.sub(rf"\1{BREAK}", text) if markup else text

    def _with_bos(self, ids: list[int]) -> list[int]:
        return [self.bos_id, *ids] if self.adds_bos and ids[:1] != [self.bos_id] else ids

    @cached_property
    def _template(self) -> ChatTemplate | None:
        return ChatTemplate(self._spec.chat_template, self._spec.named) if self._spec.chat_template else None

    @cached_property
    def _all_bytes(self) -> list[bytes | None]:
        to_bytes = _byte_level_bytes if self._spec.byte_level else _sentencepiece_bytes
        added = self._pipeline.get_added_tokens_decoder()
        table: list[bytes | None] = [DROP] * self.vocab_size
        for token, i in self._pipeline.get_vocab(with_added_tokens=True).items():
            table[i] = token.encode("utf-8") if i in added else to_bytes(token)
        return table

    @cached_property
    def _text_bytes(self) -> list[bytes | None]:
        table = list(self._all_bytes)
        for i in self._hidden_ids:
            table[i] = DROP
        return table


def _starts_of(names: Iterable[str]) -> re.Pattern | None:
    """Matches the first character of each of ``names`` in a text. None when there are none."""
    escaped = sorted((re.escape(name) for name in names if len(name) > 1), key=len, reverse=True)
    return re.compile(f"(?=(?:{'|'.join(escaped)}))(.)") if escaped else None


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"The text is not valid Unicode: character {error.start + 1:,} is half a character.") from None


def _alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


ALPHABET = _alphabet()


def _byte_level_bytes(token: str) -> bytes:
    if all(char in ALPHABET for char in token):
        return bytes(ALPHABET[char] for char in token)
    return token.encode("utf-8")


def _sentencepiece_bytes(token: str) -> bytes:
    if token in BYTE_TOKENS:
        return bytes([BYTE_TOKENS[token]])
    return token.replace("▁", " ").encode("utf-8")
