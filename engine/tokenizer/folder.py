"""Tokenizers of Hugging Face checkpoint folders: tokenizer.json, or a SentencePiece tokenizer.model."""

import json
from pathlib import Path

from tokenizers import Tokenizer as Pipeline

from engine.errors import ModelError
from engine.loading.hf_config import read_json
from engine.tokenizer.spec import NAMES, TokenizerSpec, add_markup, sentencepiece_pipeline

PROBE = " ﬁve  dots …\t½ "  # a SentencePiece model that normalises text changes it


def read(folder: Path) -> TokenizerSpec:
    """Raises ModelError when the folder has no tokenizer or a broken one."""
    settings = _json(folder / "special_tokens_map.json") | _json(folder / "tokenizer_config.json")
    named = {name: text for name in NAMES if (text := _content(folder, settings, name)) is not None}
    if (folder / "tokenizer.json").is_file():
        ends = [{"content": named[name], "special": True} for name in ("bos_token", "eos_token") if name in named]
        pipeline, special = _from_tokenizer_json(folder / "tokenizer.json", _listed(settings) + ends)
        adds_bos_by_default = None
    elif (folder / "tokenizer.model").is_file():
        pipeline, special = _from_sentencepiece(folder / "tokenizer.model", settings)
        adds_bos_by_default = True
    else:
        raise ModelError(f"{folder} has no tokenizer: neither tokenizer.json nor tokenizer.model is there.")
    generation, config = _json(folder / "generation_config.json"), _json(folder / "config.json")
    bos_id = _id(pipeline, named.get("bos_token"), next(iter(_ids(folder, config, "bos_token_id")), None))
    eos_id = _id(pipeline, named.get("eos_token"), None)
    eos_ids = {eos_id, *_ids(folder, generation, "eos_token_id"), *_ids(folder, config, "eos_token_id")} - {None}
    adds_bos = settings.get("add_bos_token", adds_bos_by_default)
    if adds_bos is None:
        adds_bos = bos_id is not None and pipeline.encode("", add_special_tokens=True).ids[:1] == [bos_id]
    return TokenizerSpec(
        pipeline=pipeline,
        special=special,
        byte_level=_has_step(pipeline.decoder, "ByteLevel"),
        strips_first_space=_strips_first_space(pipeline.decoder),
        bos_id=bos_id,
        eos_ids=frozenset(eos_ids),
        adds_bos=bool(adds_bos) and bos_id is not None,
        chat_template=_chat_template(folder, settings),
        named=named,
    )


def _from_tokenizer_json(path: Path, more: list[dict]) -> tuple[Pipeline, dict[str, int]]:
    """``more``: tokens that other files name."""
    description = _json(path)
    for token in description.get("added_tokens") or []:
        if token["special"] or is_markup(token["content"]):
            token["normalized"] = False  # so that what was escaped before normalisation stays text after it
    try:
        pipeline = Pipeline.from_str(json.dumps(description))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
    pipeline.no_truncation()
    pipeline.no_padding()
    if not (
        _has_step(pipeline.decoder, "ByteLevel") or _has_step(pipeline.decoder, "ByteFallback") or _has_step(pipeline.decoder, "Metaspace")
    ):
        raise ModelError(f"{path}: only byte-level BPE and SentencePiece tokenizers are known; its decoder is another.")
    _add_missing(pipeline, more)
    added = pipeline.get_added_tokens_decoder()
    return pipeline, {token.content: i for i, token in added.items() if token.special or is_markup(token.content)}


def _listed(settings: dict) -> list[dict]:
    """The added tokens of tokenizer_config.json in the order of their ids: {"content": text, "special": flag, ...}."""
    return [token for _, token in sorted((settings.get("added_tokens_decoder") or {}).items(), key=lambda entry: int(entry[0]))]


def _add_missing(pipeline: Pipeline, tokens: list[dict]) -> None:
    """As Transformers does, which finds them in tokenizer.json as a rule."""
    known = {token.content for token in pipeline.get_added_tokens_decoder().values()}
    for token in tokens:
        if token["content"] not in known:
            add_markup(pipeline, [token["content"]], special=token["special"])


def is_markup(content: str) -> bool:
    """Added tokens that look like <...> steer a model even where their file does not call them special."""
    return len(content) > 2 and content[0] == "<" and content[-1] == ">"


def _from_sentencepiece(path: Path, settings: dict) -> tuple[Pipeline, dict[str, int]]:
    from sentencepiece import SentencePieceProcessor

    try:
        model = SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{path} cannot be read as a SentencePiece model: {error}") from error
    count = model.vocab_size()
    pieces, scores = [model.id_to_piece(i) for i in range(count)], [model.get_score(i) for i in range(count)]
    markup = {i for i in range(count) if model.is_control(i) or model.is_unknown(i) or model.is_byte(i)}
    text_scores = [scores[i] for i in range(count) if i not in markup]
    if any(score != int(score) for score in text_scores):
        raise ModelError(f"{path} is a unigram SentencePiece model; only BPE models are known.")
    add_prefix_space = settings.get("add_prefix_space") is not False
    pipeline = sentencepiece_pipeline(pieces, scores, markup, add_prefix_space, settings.get("legacy") is not False)
    if add_prefix_space and pipeline.encode(PROBE).ids != model.encode(PROBE):
        raise ModelError(
            f"{path} changes spaces or characters before it encodes; only SentencePiece models that leave text alone are known."
        )
    special = [pieces[i] for i in sorted(markup) if not model.is_byte(i)]
    add_markup(pipeline, special)
    _add_missing(pipeline, _listed(settings))
    special += [token["content"] for token in _listed(settings)]
    return pipeline, {token: pipeline.token_to_id(token) for token in special}


def _chat_template(folder: Path, settings: dict) -> str | None:
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = settings.get("chat_template") or _json(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several named ones
        named = (entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default")
        template = next(named, {}).get("template")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{folder}: chat_template must be text, or a list of named ones; got {template!r}.")
    return template


def _has_step(decoder, name: str) -> bool:
    return decoder is not None and any(step["type"] == name for step in _steps(decoder))


def _strips_first_space(decoder) -> bool:
    return any(
        (step["type"] == "Strip" and step["start"]) or (step["type"] == "Metaspace" and step.get("prepend_scheme") != "never")
        for step in _steps(decoder)
    )


def _steps(decoder) -> list[dict]:
    state = json.loads(decoder.__getstate__())
    return state.get("decoders", [state])


def _content(folder: Path, settings: dict, key: str) -> str | None:
    """The text of a special token, which may be an object with more about it."""
    token = settings.get(key)
    text = token.get("content") if isinstance(token, dict) else token
    if text is not None and not isinstance(text, str):
        raise ModelError(f"{folder}: {key} must be text; got {text!r}.")
    return text


def _id(pipeline: Pipeline, token: str | None, default: int | None) -> int | None:
    found = pipeline.token_to_id(token) if token else None
    return default if found is None else found


def _ids(folder: Path, settings: dict, key: str) -> list[int]:
    value = settings.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise ModelError(f"{folder}: {key} must be a token id or a list of them; got {value!r}.")
    return ids


def _json(path: Path) -> dict:
    return read_json(path) if path.is_file() else {}
