"""Streamed decoding equals decoding at once, and never shows half a character."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tokenizer import Detokenizer, load_tokenizer
from tests.engine.test_tokenizer import representable

smollm2 = load_tokenizer("smollm2-135m-instruct")
BYTES = [bytes([i]) for i in range(256)]


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_pieces_joined_equal_the_text(text):
    ids = smollm2.encode(text)
    stream = smollm2.stream()
    pieces = [stream.push(i) for i in ids] + [stream.flush()]
    assert "".join(pieces) == smollm2.decode(ids, skip_special=True)
    if representable(smollm2, text):
        assert "".join(pieces) == text


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 49_151), max_size=30))
def test_any_ids_decode_the_same_streamed(ids):
    stream = smollm2.stream(skip_special=False)
    assert "".join(map(stream.push, ids)) + stream.flush() == smollm2._pipeline.decode(ids, skip_special_tokens=False)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=3), max_size=20))
def test_every_split_of_any_bytes(parts):
    stream = Detokenizer(parts, strip_first_space=False)
    assert "".join(stream.push(i) for i in range(len(parts))) + stream.flush() == b"".join(parts).decode("utf-8", "replace")


def test_characters_wait_for_their_last_byte():
    stream = Detokenizer(BYTES, strip_first_space=False)
    assert [stream.push(byte) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]
    assert stream.push(0xF0) == "" and stream.flush() == "\ufffd"


def test_only_the_first_space_is_dropped():
    stream = Detokenizer([b" a", b" b"], strip_first_space=True)
    assert stream.push(0) + stream.push(1) + stream.flush() == "a b"


def test_unknown_and_special_ids_leave_no_text():
    stream = smollm2.stream()
    assert [stream.push(i) for i in (-1, 49_152, 10**9, 2)] == [""] * 4
