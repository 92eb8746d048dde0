"""A made-up tokenizer for random weights: every id has a text, so that a model without files can be asked and read.

Tokens are the bytes, and invented words of up to three syllables with a full stop now and then. What a model has said becomes about
as many tokens again in the next prompt. No token ends an answer: random weights would choose it anywhere.
"""

from collections.abc import Iterator
from itertools import chain, islice, product

from tokenizers import Tokenizer as Pipeline
from tokenizers import decoders, models, pre_tokenizers

from engine.tokenizer.spec import TokenizerSpec, add_markup
from engine.tokenizer.tokenizer import ALPHABET

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
SPACE, LINE_END = (next(char for char, byte in ALPHABET.items() if byte == code) for code in b" \n")
MARKUP = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STRIDE = 211_973  # shares no factor with the number of long words: neighbouring ids are unlike each other


def made_up(vocab_size: int) -> TokenizerSpec:
    """``vocab_size`` tokens: 256 bytes, words, and markup at the end. At least 512, at most 349,000, which are all words."""
    merges = list(islice(_merges(), vocab_size - len(ALPHABET) - len(MARKUP)))
    tokens = [*ALPHABET, *map("".join, merges), *MARKUP]
    vocab = {token: i for i, token in enumerate(tokens)}
    pipeline = Pipeline(models.BPE(vocab, merges))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pipeline.decoder = decoders.ByteLevel()
    add_markup(pipeline, list(MARKUP))
    special = {token: vocab[token] for token in MARKUP}
    return TokenizerSpec(pipeline, special, byte_level=True, strips_first_space=False, chat_template=CHAT_TEMPLATE)


def _merges() -> Iterator[tuple[str, str]]:
    """The two halves of each token that is no byte, short ones first. A word begins with its space."""
    syllables = ["".join(pair) for pair in product(CONSONANTS, VOWELS)]
    short = [SPACE + syllable for syllable in syllables]
    words = ["".join(pair) for pair in product(short, syllables)]
    pause, paragraph = LINE_END + LINE_END, f".{LINE_END}{LINE_END}"
    return chain(
        product(CONSONANTS, VOWELS),
        [(LINE_END, LINE_END), (".", pause)],
        ((syllable, paragraph) for syllable in syllables),
        ((SPACE, syllable) for syllable in syllables),
        product(short, syllables),
        ((word, ".") for word in words[::4]),
        _long_words(words, syllables),
    )


def _long_words(words: list[str], syllables: list[str]) -> Iterator[tuple[str, str]]:
    count = len(words) * len(syllables)
    for i in range(count):
        word, syllable = divmod(i * STRIDE % count, len(syllables))
        yield words[word], syllables[syllable]
