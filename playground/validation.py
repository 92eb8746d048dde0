"""What is wrong with a request, in words: pydantic's own, and better ones for characters that no text may hold."""

import re

from ninja import NinjaAPI
from ninja.errors import ValidationError, ValidationErrorContext

FORBIDDEN = re.compile("[\0\ud800-\udfff]")


def words_of(error: dict) -> str:
    """The message of one of pydantic's errors (with its ``input``), without a full stop."""
    given = error["input"]
    found = FORBIDDEN.search(given) if error["type"] in ("string_pattern_mismatch", "string_unicode") and isinstance(given, str) else None
    if found is None:
        return error["msg"]
    what = "NUL (U+0000), which no text may hold here" if found[0] == "\0" else f"half of a surrogate pair (U+{ord(found[0]):X})"
    return f"Character {found.start() + 1:,} is {what}"


class WordedAPI(NinjaAPI):
    """An API whose validation errors carry ``words_of`` them: Ninja keeps the messages, not what was given."""

    def validation_error_from_error_contexts(self, error_contexts: list[ValidationErrorContext]) -> ValidationError:
        refused = super().validation_error_from_error_contexts(error_contexts)
        errors = [error for context in error_contexts for error in context.pydantic_validation_error.errors(include_url=False)]
        for kept, error in zip(refused.errors, errors, strict=True):
            kept["msg"] = words_of(error)
        return refused
