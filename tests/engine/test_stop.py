"""Stop strings over piece boundaries: found, never leaked, released when the match breaks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.stop import StopMatcher


def test_over_a_boundary():
    matcher = StopMatcher(["beta gamma"])
    assert [matcher.push(text) for text in ("alpha be", "ta ", "gam", "ma delta")] == ["alpha ", "", "", ""]
    assert matcher.stopped and matcher.flush() == "" and matcher.push("more") == ""


def test_a_broken_match_is_released():
    matcher = StopMatcher(["\n\n\n", "END"])
    assert [matcher.push(text) for text in ("a\n\n", "b E", "N", "\n")] == ["a", "\n\nb ", "", "EN"]
    assert not matcher.stopped and matcher.flush() == "\n"


def test_overlapping_beginnings():
    matcher = StopMatcher(["aab"])
    assert "".join(matcher.push(char) for char in "aaab") == "a" and matcher.stopped


def test_no_stops_pass_everything():
    assert StopMatcher([]).push("text") == "text"


@settings(max_examples=300, deadline=None)
@given(st.text("ab\n", max_size=40), st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_every_split_gives_the_same_text(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    matcher, out = StopMatcher(stops), ""
    for piece in pieces:
        out += matcher.push(piece)
        assert text.startswith(out) and not any(stop in out for stop in stops)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert matcher.stopped == bool(ends)
    if not ends:
        assert out + matcher.flush() == text
    else:
        first_end = min(ends)
        assert out == text[: min(first_end - len(stop) for stop in stops if text[:first_end].endswith(stop))]
