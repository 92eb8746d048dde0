"""Tokenizers out of GGUF metadata: byte-level BPE ("gpt2") and SentencePiece BPE ("llama")."""

from pathlib import Path

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Pipeline

from engine.errors import ModelError
from engine.gguf_file import GgufFile
from engine.loading.gguf_config import Keys
from engine.tokenizer.folder import is_markup
from engine.tokenizer.spec import TokenizerSpec, add_markup, sentencepiece_pipeline

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6  # values of tokenizer.ggml.token_type
NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}  # here -> in chat templates

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _digits_then_gpt2():
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _gpt2():
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _split(pattern: str):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# tokenizer.ggml.pre -> how text is cut into words before BPE, as the models' own tokenizer.json files do it
PRE_TOKENIZERS = {
    **dict.fromkeys(("default", "gpt-2", "olmo", "jina-v2-code"), _gpt2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _digits_then_gpt2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "smaug-bpe"), lambda: _split(_WORDS % r"\p{N}{1,3}")),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), lambda: _split(_WORDS % r"\p{N}")),
}


def read(path: Path) -> TokenizerSpec:
    """Raises ModelError for a broken file or a tokenizer of an unknown kind."""
    metadata = GgufFile(path).metadata
    keys = Keys(path, metadata)
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if kind not in ("gpt2", "llama") or not tokens:
        raise ModelError(f"{path}: the tokenizer kind {kind!r} is not known; gpt2 and llama are.")
    types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if len(types) != len(tokens):
        raise ModelError(f"{path}: tokenizer.ggml.token_type has {len(types):,} entries for {len(tokens):,} tokens.")
    pipeline = (_byte_level if kind == "gpt2" else _sentencepiece)(path, metadata, tokens, types)
    control = [token for token, of_type in zip(tokens, types, strict=True) if of_type in (CONTROL, UNKNOWN)]
    defined = [token for token, of_type in zip(tokens, types, strict=True) if of_type == USER_DEFINED]
    add_markup(pipeline, control)
    add_markup(pipeline, defined, special=False)
    special = control + [token for token in defined if is_markup(token)]
    ids = {name: keys.integer(f"tokenizer.ggml.{name}_token_id", -1) for name in (*NAMES, "eot")}
    ids = {name: i for name, i in ids.items() if 0 <= i < len(tokens)}
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or metadata.get("tokenizer.ggml.pre") == "llama-bpe")
    return TokenizerSpec(
        pipeline=pipeline,
        special={token: pipeline.token_to_id(token) for token in special},
        byte_level=kind == "gpt2",
        strips_first_space=kind == "llama" and metadata.get("tokenizer.ggml.add_space_prefix", True),
        bos_id=ids.get("bos"),
        eos_ids=frozenset(ids[name] for name in ("eos", "eot") if name in ids),
        adds_bos=bool(adds_bos) and "bos" in ids,
        chat_template=keys.text("tokenizer.chat_template", "") or None,
        named={NAMES[name]: tokens[i] for name, i in ids.items() if name in NAMES},
    )


def _byte_level(path: Path, metadata: dict, tokens: list[str], types: list[int]) -> Pipeline:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise ModelError(f"{path}: the pre-tokenizer {pre!r} is not known; known: {', '.join(PRE_TOKENIZERS)}.")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", [])]
    vocab = {token: i for i, token in enumerate(tokens)}
    pipeline = Pipeline(models.BPE(vocab, merges, ignore_merges=pre in ("llama-bpe", "llama3", "llama-v3")))
    pipeline.pre_tokenizer = PRE_TOKENIZERS[pre]()
    pipeline.decoder = decoders.ByteLevel()
    return pipeline


def _sentencepiece(path: Path, metadata: dict, tokens: list[str], types: list[int]) -> Pipeline:
    scores = metadata.get("tokenizer.ggml.scores")
    if not scores:
        raise ModelError(f"{path}: tokenizer.ggml.scores is missing.")
    markup = {i for i, of_type in enumerate(types) if of_type in (CONTROL, UNKNOWN, BYTE)}
    return sentencepiece_pipeline(tokens, scores, markup, metadata.get("tokenizer.ggml.add_space_prefix", True), legacy=True)
