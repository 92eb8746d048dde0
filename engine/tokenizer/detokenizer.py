"""Streamed decoding: token ids in, text out, never half a UTF-8 character."""

import codecs
from collections.abc import Sequence

DROP = None  # a token that leaves no text


class Detokenizer:
    """Joins the bytes of tokens and gives out whole characters.

    The pieces of ``push`` and the last of ``flush`` joined equal the text of all tokens decoded at once. Bytes that can
    never become a character turn into U+FFFD as soon as that is certain.
    """

    def __init__(self, token_bytes: Sequence[bytes | None], strip_first_space: bool):
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = strip_first_space

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` made final; "" while a character is incomplete. Unknown ids leave no text."""
        data = self._token_bytes[token_id] if 0 <= token_id < len(self._token_bytes) else DROP
        if not data:
            return ""
        if self._strip:
            data, self._strip = data.removeprefix(b" "), False
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character, or ""."""
        return self._decoder.decode(b"", final=True)
