"""Tokenizers of all three sources against golden data, Transformers and SentencePiece; typed text never becomes markup."""

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Pipeline

from engine.errors import InvalidRequest, ModelError
from engine.shapes import SHAPES
from engine.tokenizer import load_tokenizer, tokenizer
from engine.tokenizer.tokenizer import ALPHABET

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "smollm2.json").read_text())
CORPUS = [
    "def add(a, b):\n    return a + b\n",
    "Grüße aus München, 数字 und 🙂 emojis 👩‍👩‍👧!",
    "The quick brown fox  jumps over 1234 lazy dogs.\t",
] * 20
SIGN_OF = {byte: sign for sign, byte in ALPHABET.items()}
TEXTS = [
    "",
    " ",
    "Hello world",
    "  two  spaces ",
    "a\n\nb\r\n\tc",
    "naïve 数字 🙂👩‍👩‍👧 한국어",
    "x = 12345; y=0.5",
    "</s><s>[INST]",
    "\x00\x7f",
    "é" * 50,
]


@pytest.fixture(scope="module")
def smollm2():
    return load_tokenizer("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def json_folder(tmp_path_factory) -> Path:
    """A byte-level BPE checkpoint folder with specials outside the vocabulary, BOS by post-processor, a template file."""
    folder = tmp_path_factory.mktemp("bytelevel")
    pipeline = Pipeline(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    pipeline.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    special = ["<|begin|>", "<|end|>", "<|eot|>"]
    pipeline.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    pipeline.add_tokens([AddedToken("<tool>", special=False), AddedToken("    ", special=False)])
    begin = pipeline.token_to_id("<|begin|>")
    pipeline.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    pipeline.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|begin|>", "eos_token": {"__type": "AddedToken", "content": "<|end|>"}})
    )
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [pipeline.token_to_id("<|end|>"), pipeline.token_to_id("<|eot|>")]})
    )
    (folder / "config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}<|begin|>{{ m.role }}: {{ m.content | trim }}<|eot|>{% endfor %}"
    )
    return folder


def train_sentencepiece(folder: Path, **options) -> Path:
    """A Llama-2 style SentencePiece BPE model with byte fallback."""
    import sentencepiece

    (folder / "corpus.txt").write_text("\n".join(line for text in CORPUS for line in text.splitlines()), encoding="utf-8")
    defaults = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus.txt"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=360,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.99,
        minloglevel=2,
        **defaults | options,
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ bos_token }}[INST] {{ messages[0].content }} [/INST]"})
    )
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def sentencepiece_folder(tmp_path_factory) -> Path:
    return train_sentencepiece(tmp_path_factory.mktemp("sentencepiece"))


@pytest.mark.parametrize("case", GOLDEN["tokenizer"], ids=lambda case: repr(case["text"][:24]))
def test_golden_texts(smollm2, case):
    assert smollm2.encode(case["text"], special=True) == case["ids"]
    assert smollm2.decode(case["ids"]) == case["decoded"]


@pytest.mark.parametrize("case", GOLDEN["greedy"], ids=lambda case: case["messages"][0]["content"][:24])
def test_golden_chats(smollm2, case):
    assert smollm2.render_chat(case["messages"]) == case["prompt_ids"]
    assert smollm2.count(case["messages"]) == len(case["prompt_ids"])
    assert smollm2.decode(case["greedy_ids"], skip_special=True) == case["text"]


def test_no_torch_is_loaded():
    code = "import sys, engine; from engine.tokenizer import load_tokenizer; load_tokenizer('smollm2-135m-instruct').encode('a'); "
    code += "engine.Engine, engine.SamplingParams; print('torch' in sys.modules, 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False False"


def test_ends_and_bos(smollm2, json_folder, sentencepiece_folder):
    assert (smollm2.bos_id, smollm2.eos_ids, smollm2.adds_bos, smollm2.vocab_size) == (1, {2}, False, 49_152)
    ours = load_tokenizer(str(json_folder))
    assert ours.adds_bos and len(ours.eos_ids) == 2
    assert load_tokenizer(str(sentencepiece_folder)).eos_ids == {2}


def test_bos_comes_exactly_once(json_folder, sentencepiece_folder):
    for folder in (json_folder, sentencepiece_folder):
        ours = load_tokenizer(str(folder))
        for ids in (ours.encode_prompt("hello"), ours.encode_prompt("<s><|begin|>"), ours.render_chat([{"role": "user", "content": "hi"}])):
            assert ids[0] == ours.bos_id
        assert ours.encode_prompt("<s><|begin|>").count(ours.bos_id) == 1
        assert ours.encode("hello")[0] != ours.bos_id


@settings(max_examples=120, deadline=None)
@given(text=st.text(max_size=80))
def test_round_trip_of_any_text(smollm2, json_folder, text):
    other = load_tokenizer_once(json_folder)
    assert other.decode(other.encode(text)) == text
    if representable(smollm2, text):
        assert smollm2.decode(smollm2.encode(text)) == text


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<", "|>", "<|endoftext|>", "<repo_name>", "a", "\n"]), max_size=8
    )
)
def test_typed_text_never_becomes_markup(smollm2, parts):
    text = "".join(parts)
    ids = smollm2.encode(text)
    assert all(i > 16 for i in ids)
    assert smollm2.decode(ids) == text
    chat = smollm2.render_chat([{"role": "user", "content": text}])
    assert [i for i in chat if i <= 16] == [1, 2, 1, 2, 1]  # the template's own
    assert text in smollm2.decode(chat)


def test_markup_that_is_not_called_special_is_markup_all_the_same(json_folder):
    ours = load_tokenizer(str(json_folder))
    assert len(ours.encode("<tool>")) > 1 and len(ours.encode("<tool>", special=True)) == 1
    assert len(ours.encode("a    b")) == 3  # an added token that is text stays one


def test_markup_that_is_not_called_special_is_part_of_answers_and_known_again_in_them(json_folder, tmp_path):
    """As reasoning models need it: <think> is shown, and their templates cut it out of earlier answers."""
    transformers = pytest.importorskip("transformers")
    folder = shutil.copytree(json_folder, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content.split('<tool>')[-1] }}{% endfor %}")
    ours, theirs = load_tokenizer(str(folder)), transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    said = ours.encode("<|begin|>reasons<tool>answer<|end|>", special=True)
    text = ours.decode(said, skip_special=True)
    assert text == theirs.decode(said, skip_special_tokens=True) == "reasons<tool>answer"
    chat = [{"role": "assistant", "content": text}, {"role": "user", "content": text}, {"role": "assistant", "content": "<|end|>"}]
    assert ours.decode(ours.render_chat(chat)) == "<|begin|>assistant: answeruser: reasons<tool>answerassistant: <|end|>"
    ids = ours.render_chat(chat)
    special = {token: ours.encode(token, special=True)[0] for token in ("<tool>", "<|end|>")}
    assert not set(special.values()) & set(ids), "typed and said special tokens are text"


def test_json_equals_transformers(json_folder):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(json_folder / "tokenizer.json"))
    ours = load_tokenizer(str(json_folder))
    for text in [*TEXTS, "<|begin|>x<|end|>  <tool>"]:
        assert ours.encode(text, special=True) == theirs.encode(text, add_special_tokens=False)
        ids = ours.encode(text, special=True)
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)


def test_sentencepiece_equals_the_original(sentencepiece_folder):
    import sentencepiece

    original = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_folder / "tokenizer.model"))
    ours = load_tokenizer(str(sentencepiece_folder))
    for text in [*TEXTS, *CORPUS[:3]]:
        text = text.replace("\x00", "")  # SentencePiece ends a text there
        assert ours.encode(text) == original.encode(text), text
        assert ours.decode(ours.encode(text)) == original.decode(original.encode(text)), text


@pytest.mark.parametrize(
    "options",
    [{"normalization_rule_name": "nmt_nfkc"}, {"remove_extra_whitespaces": True}, {"add_dummy_prefix": False}],
    ids=lambda options: next(iter(options)),
)
def test_sentencepiece_models_that_change_text_are_refused(options, tmp_path):
    with pytest.raises(ModelError, match="only SentencePiece models that leave text alone are known"):
        load_tokenizer(str(train_sentencepiece(tmp_path, **options)))


def write_gguf(path: Path, model: str, tokens: list[str], types: list[int], **metadata) -> Path:
    """A .gguf file with a tokenizer and no tensors. ``metadata``: further keys of ``tokenizer.ggml``, or whole ones with ``__``."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writers = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}
    for key, value in metadata.items():
        writers[type(value)](key.replace("__", ".") if "__" in key else f"tokenizer.ggml.{key}", value)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    return path


BYTES = [SIGN_OF[byte] for byte in range(256)]  # the smallest byte-level vocabulary


def test_templates_of_gguf_files_get_the_named_tokens(tmp_path):
    tokens, template = [*BYTES, "<s>", "<end>", "<eot>"], "{{ bos_token }}{{ messages[0].content + eos_token }}"
    ids = {"bos_token_id": 256, "eos_token_id": 258, "eot_token_id": 257}
    path = write_gguf(tmp_path / "m.gguf", "gpt2", tokens, [1] * 256 + [3] * 3, tokenizer__chat_template=template, **ids)
    ours = load_tokenizer(str(path))
    assert ours.render_chat([{"role": "user", "content": "a"}]) == [256, 97, 258] and ours.eos_ids == {257, 258}


def test_tokens_that_a_gguf_file_defines_are_whole_and_shown(tmp_path):
    tokens = [*BYTES, "<s>", "é  é", "<think>"]
    ours = load_tokenizer(str(write_gguf(tmp_path / "m.gguf", "gpt2", tokens, [1] * 256 + [3, 4, 4])))
    assert ours.encode("aé  é<think><s>", special=True) == [97, 257, 258, 256]
    assert ours.decode([256, 257, 258], skip_special=True) == "é  é<think>"
    assert 258 not in ours.encode("<think>") and 257 in ours.encode("é  é")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"types": [1] * 5}, "tokenizer.ggml.token_type has 5 entries for 256 tokens"),
        ({"bos_token_id": "x"}, "tokenizer.ggml.bos_token_id must be a whole number; got 'x'"),
        ({"eot_token_id": [1]}, r"tokenizer.ggml.eot_token_id must be a whole number; got \[1\]"),
        ({"tokenizer__chat_template": 5}, "tokenizer.chat_template must be text; got 5"),
    ],
)
def test_tokenizers_of_gguf_files_that_are_wrong_are_named(metadata, message, tmp_path):
    path = write_gguf(tmp_path / "m.gguf", **{"model": "gpt2", "tokens": BYTES, "types": [1] * 256} | metadata)
    with pytest.raises(ModelError, match=f"m.gguf: {message}"):
        load_tokenizer(str(path))


def test_llama_gguf_equals_the_same_sentencepiece_model(sentencepiece_folder, tmp_path):
    import sentencepiece

    original = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_folder / "tokenizer.model"))
    count = original.vocab_size()
    types = [2 if original.is_unknown(i) else 3 if original.is_control(i) else 6 if original.is_byte(i) else 1 for i in range(count)]
    pieces, scores = [original.id_to_piece(i) for i in range(count)], [original.get_score(i) for i in range(count)]
    write_gguf(tmp_path / "model.gguf", "llama", pieces, types, scores=scores, bos_token_id=1, eos_token_id=2)
    ours = load_tokenizer(str(tmp_path / "model.gguf"))
    assert ours.adds_bos and ours.eos_ids == {2}
    for text in TEXTS[1:]:
        text = text.replace("\x00", "")
        assert ours.encode(text) == original.encode(text)


def test_unknown_kinds_are_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="neither tokenizer.json nor tokenizer.model"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{ nonsense")
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read as a tokenizer"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_templates_get_the_tokens_that_the_files_name(json_folder, tmp_path, file):
    """The end token of the text is the named one, not another of those at which an answer ends."""
    transformers = pytest.importorskip("transformers")
    folder = shutil.copytree(json_folder, tmp_path / "model")
    (folder / "tokenizer_config.json").write_text("{}")
    names = {"bos_token": "<|begin|>", "eos_token": "<|eot|>", "pad_token": "<|end|>"}
    (folder / file).write_text(json.dumps(names))
    template = "{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}{{ pad_token }}{{ unk_token }}"
    (folder / "chat_template.jinja").write_text(template)
    ours, theirs = load_tokenizer(str(folder)), transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert ours.chat_text(chat) == theirs.apply_chat_template(chat, tokenize=False) == "<|begin|>a<|eot|>b<|eot|><|end|>"
    assert len(ours.eos_ids) == 2


@pytest.mark.parametrize(
    ("added", "message"), [([{"id": 1}], "KeyError: 'special'"), (["x"], "TypeError: string indices"), (5, "TypeError: 'int' object")]
)
def test_whatever_is_wrong_with_a_tokenizer_is_said_in_one_error(json_folder, tmp_path, added, message):
    folder = shutil.copytree(json_folder, tmp_path / "model")
    (folder / "tokenizer.json").write_text(json.dumps(json.loads((folder / "tokenizer.json").read_text()) | {"added_tokens": added}))
    with pytest.raises(ModelError, match=f"{re.escape(str(folder))}: its tokenizer cannot be read: {message}"):
        load_tokenizer(str(folder))


def test_a_gguf_tokenizer_that_the_library_refuses_is_an_error_in_one_line(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", "gpt2", BYTES, [1] * 256, merges=["a", "b"])
    with pytest.raises(ModelError, match="m.gguf: its tokenizer cannot be read: TypeError") as caught:
        load_tokenizer(str(path))
    assert "\n" not in str(caught.value)


def test_tokens_that_only_the_configuration_lists_are_added_as_transformers_adds_them(json_folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = shutil.copytree(json_folder, tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    count = load_tokenizer(str(folder)).vocab_size
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    listed = {str(count): {"content": "<|pause|>", "special": True} | flags, str(count + 1): {"content": "plain", "special": False} | flags}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "[END]", "added_tokens_decoder": listed}))
    ours, theirs = load_tokenizer(str(folder)), transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    text = "a plain<|pause|> b [END]"
    ids = ours.encode(text, special=True)
    assert ids == theirs.encode(text, add_special_tokens=False) and {count, count + 1, count + 2} < set(ids)
    assert count + 2 in ours.eos_ids and ours.decode(ids, skip_special=True) == theirs.decode(ids, skip_special_tokens=True)
    assert not {count, count + 2} & set(ours.encode(text))


def test_no_template_is_an_error_in_words(json_folder, tmp_path):
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((json_folder / name).read_bytes())
    with pytest.raises(InvalidRequest, match="no chat template"):
        load_tokenizer(str(tmp_path)).render_chat([{"role": "user", "content": "hi"}])


def representable(tokenizer, text):
    """SmolLM2's vocabulary lacks some bytes of rare scripts; as in Transformers they are left out."""
    return all(tokenizer._pipeline.token_to_id(SIGN_OF[byte]) is not None for byte in text.encode())


_loaded = {}


def load_tokenizer_once(folder):
    if folder not in _loaded:
        _loaded[folder] = load_tokenizer(str(folder))
    return _loaded[folder]


def test_half_a_character_is_refused_by_its_place(smollm2):
    with pytest.raises(InvalidRequest, match="character 2 is half a character"):
        smollm2.encode("a\udcffb")
    with pytest.raises(InvalidRequest, match="character 2 is half a character"):
        smollm2.render_chat([{"role": "user", "content": "a\udcffb"}])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer_config.json", [], "tokenizer_config.json must hold a JSON object."),
        ("generation_config.json", 3, "generation_config.json must hold a JSON object."),
        ("tokenizer_config.json", {"bos_token": 7}, "bos_token must be text; got 7."),
        ("tokenizer_config.json", {"eos_token": {"content": ["x"]}}, "eos_token must be text; got ['x']."),
        ("generation_config.json", {"eos_token_id": ["x"]}, "eos_token_id must be a token id or a list of them; got ['x']."),
        ("config.json", {"eos_token_id": {}}, "eos_token_id must be a token id or a list of them; got {}."),
        ("tokenizer_config.json", {"chat_template": 5}, "chat_template must be text, or a list of named ones; got 5."),
    ],
)
def test_settings_of_another_kind_are_refused_by_name(json_folder, tmp_path, file, content, message):
    folder = shutil.copytree(json_folder, tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(ModelError, match=re.escape(message)):
        load_tokenizer(str(folder))


def test_whatever_a_chat_template_raises_is_said_in_one_error(json_folder, tmp_path):
    folder = shutil.copytree(json_folder, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ 1 / 0 }}")
    with pytest.raises(InvalidRequest, match="does not take these messages: division by zero"):
        load_tokenizer(str(folder)).render_chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("source", ["smollm2", "json_folder", "sentencepiece_folder"])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.lists(st.sampled_from([*TEXTS, *CORPUS[:3], "<|im_start|>", "</s>", "a" * 50, " " * 90]), min_size=1), limit=st.integers(1, 400)
)
def test_what_a_long_text_has_at_least_is_never_more_than_it_has(request, source, seed, limit):
    found = request.getfixturevalue(source)
    ours = load_tokenizer_once(found) if isinstance(found, Path) else found
    text = "".join(seed) * 8
    messages = [{"role": "user", "content": text}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "PART_CHARS", 500)
        for prompt, exact in ((text, len(ours.encode_prompt(text))), (messages, ours.count(messages))):
            least = ours.far_over(prompt, limit)
            assert least is None or limit < least <= exact


def test_megabytes_are_refused_after_the_limit_and_shorter_ones_are_counted(smollm2):
    megabytes = "word " * 400_000
    assert 8_192 < smollm2.far_over(megabytes, 8_192) < 30_000
    assert smollm2.far_over([{"role": "user", "content": "<|im_start|>" * 100_000}], 8_192) > 8_192
    assert smollm2.far_over("word " * 9_000, 8_192) is None
    assert smollm2.far_over(" " * 500_000, 8_192) is None, "7,813 tokens"
    with pytest.raises(InvalidRequest, match="character 2,000,001 is half a character"):
        smollm2.far_over(megabytes + "\udcff", 8_192)


@pytest.mark.parametrize("shape", SHAPES)
def test_random_weights_have_a_made_up_tokenizer(shape):
    ours = load_tokenizer(f"random:{shape}")
    size = SHAPES[shape].vocab_size
    assert ours.vocab_size == size and not ours.eos_ids
    texts = [ours.token_bytes(i) for i in range(size)]
    assert all(texts) and len(set(texts)) == size
    messages = [{"role": "user", "content": "What does <|end|> mean? 数字 🙂"}]
    assert ours.decode(ours.render_chat(messages)) == "<|user|>What does <|end|> mean? 数字 🙂<|end|><|assistant|>"
    assert ours.render_chat(messages).count(size - 1) == 1  # typed markup is text


def test_what_random_weights_say_fits_the_next_prompt():
    ours = load_tokenizer("random:laneformer-2b")
    ids = random.Random(0).choices(range(SHAPES["laneformer-2b"].vocab_size), k=1000)
    text = ours.decode(ids, skip_special=True)
    assert len(ours.encode(text)) < 1050 and ours.decode(ours.encode(text)) == text
    ends = [ours.token_text(i)[-3:] for i in range(256, ours.vocab_size)]
    assert ends.count(".\n\n") > 50 and sum(end[-1] == "." for end in ends) > 1000
