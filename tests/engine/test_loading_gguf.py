"""GGUF files: the golden Llamas converted by hand, every quantised type, and what is refused."""

import json
import random
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from safetensors.torch import load_file

from engine import reference
from engine.config import RopeScaling
from engine.errors import ModelError
from engine.gguf_file import GgufFile
from engine.loading import load_config, load_weights
from engine.models import resolve

GOLDEN = Path(__file__).parents[1] / "golden/llama"
NAMES = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def converted(folder: Path) -> dict[str, np.ndarray]:
    """Tensors of a Hugging Face Llama under their GGUF names, q and k with interleaved pairs, as llama.cpp converts them."""
    settings = json.loads((folder / "config.json").read_text())
    heads = {"attn_q.weight": settings["num_attention_heads"], "attn_k.weight": settings["num_key_value_heads"]}
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.numpy()
        if name in TOP:
            tensors[TOP[name]] = values
            continue
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        if NAMES[rest] in heads:
            count = heads[NAMES[rest]]
            values = values.reshape(count, 2, values.shape[0] // count // 2, -1).swapaxes(1, 2).reshape(values.shape)
        tensors[f"blk.{layer}.{NAMES[rest]}"] = values
    return tensors


def write(path: Path, folder: Path, tensors: dict, raw_types: dict | None = None, **metadata) -> Path:
    settings = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, metadata.pop("architecture", "llama"))
    writer.add_context_length(settings["max_position_embeddings"])
    writer.add_embedding_length(settings["hidden_size"])
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_feed_forward_length(settings["intermediate_size"])
    writer.add_head_count(settings["num_attention_heads"])
    writer.add_head_count_kv(settings["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(settings["rms_norm_eps"])
    writer.add_rope_freq_base(settings["rope_parameters"]["rope_theta"])
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "ä", "b"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5, -2.0])
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(7)
    for key, value in metadata.items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key.replace("__", "."), value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor), raw_dtype=(raw_types or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def load(path):
    source = resolve(str(path))
    config = load_config(source)
    return config, load_weights(source, config, dtype=torch.float32, device="cpu")


def test_a_converted_llama_gives_the_golden_logits(tmp_path):
    folder = GOLDEN / "llama_tied_gqa"
    config, weights = load(write(tmp_path / "m.gguf", folder, converted(folder)))
    expected = load_file(folder / "expected.safetensors")
    assert (config.tied_head, config.eos_ids, config.dtype) == (True, (2, 7), "float32")
    assert (reference.forward(config, weights, expected["input_ids"].tolist()) - expected["logits"]).abs().max() <= 1e-4


def test_llama3_scaling_as_stored_factors(tmp_path):
    folder = GOLDEN / "llama3_rope"
    plain = load_config(resolve(str(folder)))
    unscaled = 1.0 / plain.rope_theta ** (torch.arange(0, plain.head_size, 2) / plain.head_size)
    factors = (unscaled / plain.rope_inverse_frequencies()).float().numpy()
    config, weights = load(write(tmp_path / "m.gguf", folder, converted(folder) | {"rope_freqs.weight": factors}))
    expected = load_file(folder / "expected.safetensors")
    assert config.rope_scaling.kind == "factors" and not config.tied_head
    assert (reference.forward(config, weights, expected["input_ids"].tolist()) - expected["logits"]).abs().max() <= 1e-4


def test_linear_scaling(tmp_path):
    folder = GOLDEN / "llama_tied_gqa"
    path = tmp_path / "m.gguf"
    tensors = converted(folder)
    write(path, folder, tensors, llama__rope__scaling__type="linear", llama__rope__scaling__factor=4)
    assert load_config(resolve(str(path))).rope_scaling == RopeScaling("linear", 4)


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({"type": "linear", "factor": 4}, 4),
        ({"factor": 4}, 4),
        ({"scale_linear": 4}, 4),
        ({"type": "none", "factor": 4}, 1),
        ({"type": "linear"}, 1),
        ({}, 1),
    ],
)
def test_linear_factors_in_every_spelling_alone_and_beside_factors_per_pair(keys, factor, tmp_path):
    folder = GOLDEN / "llama_tied_gqa"
    metadata = {f"llama__rope__{'' if key == 'scale_linear' else 'scaling__'}{key}": value for key, value in keys.items()}
    plain = load_config(resolve(str(folder))).rope_inverse_frequencies()
    config = load_config(resolve(str(write(tmp_path / "a.gguf", folder, converted(folder), **metadata))))
    assert torch.allclose(config.rope_inverse_frequencies(), plain / factor)
    tensors = converted(folder) | {"rope_freqs.weight": np.arange(1, 9, dtype=np.float32)}
    config = load_config(resolve(str(write(tmp_path / "b.gguf", folder, tensors, **metadata))))
    assert torch.allclose(config.rope_inverse_frequencies(), plain / factor / torch.arange(1, 9))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_types_equal_their_dequantisation(kind, tmp_path):
    folder, quantised = GOLDEN / "llama_tied_gqa", GGMLQuantizationType[kind]
    tensors = converted(folder)
    packed = {name: quants.quantize(value, quantised) if value.ndim == 2 else value for name, value in tensors.items()}
    types = {name: quantised for name, value in tensors.items() if value.ndim == 2 and kind != "F16"}
    config, weights = load(write(tmp_path / "m.gguf", folder, packed, types))
    down = quants.dequantize(packed["blk.1.ffn_down.weight"], quantised)
    assert torch.equal(weights.layers[1].w2[0], torch.from_numpy(np.array(down)))
    q, k, v = (quants.dequantize(packed[f"blk.2.attn_{name}.weight"], quantised) for name in "qkv")
    assert torch.equal(weights.layers[2].wqkv[0], torch.from_numpy(np.concatenate([q, k, v])))
    assert config.tied_head and weights.head.data_ptr() == weights.embedding.data_ptr()


SCALES = {  # where in a block the float16 scales are that random bytes would make infinite
    "Q2_K": slice(80, 84),
    "Q3_K": slice(108, 110),
    "Q4_K": slice(0, 4),
    "Q5_K": slice(0, 4),
    "Q6_K": slice(208, 210),
    "IQ4_NL": slice(0, 2),
    "IQ4_XS": slice(0, 2),
}


@pytest.mark.parametrize("kind", SCALES)
def test_k_quants_are_read_by_rows_and_by_columns(kind, tmp_path, monkeypatch):
    """Random blocks (the Python package cannot quantise these types); small chunks, so that rows come in several reads."""
    from engine.loading import gguf as loader

    monkeypatch.setattr(loader, "CHUNK_VALUES", 1000)
    quantised = GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[quantised]
    folder = tmp_path / "shape"
    folder.mkdir()
    settings = json.loads((GOLDEN / "llama_tied_gqa/config.json").read_text())
    settings |= {"hidden_size": block, "intermediate_size": 2 * block, "num_hidden_layers": 1, "vocab_size": 20}
    (folder / "config.json").write_text(json.dumps(settings))
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        blocks = rng.integers(0, 256, (rows * columns // block, block_bytes), dtype=np.uint8)
        scales = np.frombuffer(np.full(2, 0.01, np.float16).tobytes(), np.uint8)
        place = SCALES[kind]
        blocks[:, place] = scales[: place.stop - place.start]
        return blocks.reshape(rows, -1)

    d, f = block, 2 * block
    shapes = {"attn_q": (d, d), "attn_k": (d // 2, d), "attn_v": (d // 2, d), "attn_output": (d, d), "ffn_gate": (f, d), "ffn_up": (f, d),
              "ffn_down": (d, f)}  # fmt: skip
    tensors = {f"blk.0.{name}.weight": matrix(*shape) for name, shape in shapes.items()} | {"token_embd.weight": matrix(20, d)}
    types = dict.fromkeys(tensors, quantised)
    norms = {name: np.ones(d, np.float32) for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight")}
    _, weights = load(write(tmp_path / "m.gguf", folder, tensors | norms, types))
    layer = weights.layers[0]
    for ours, name in (
        (layer.w2[0], "blk.0.ffn_down.weight"),
        (layer.wo[0], "blk.0.attn_output.weight"),
        (weights.embedding, "token_embd.weight"),
    ):
        assert torch.equal(ours, torch.from_numpy(quants.dequantize(tensors[name], quantised)))


def test_metadata_is_plain_python(tmp_path):
    folder = GOLDEN / "llama_tied_gqa"
    file = GgufFile(write(tmp_path / "m.gguf", folder, converted(folder)))
    assert file.metadata["tokenizer.ggml.tokens"] == ["<s>", "ä", "b"]
    assert file.metadata["tokenizer.ggml.scores"] == [0.5, 1.5, -2.0]
    assert file.metadata["general.architecture"] == "llama"


def broken(name: str, value) -> dict:
    tensors = converted(GOLDEN / "llama_tied_gqa")
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    return tensors


NAN = np.full((64, 160), np.nan, np.float32)


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        (broken("blk.1.ffn_down.weight", None), {}, r"tensor blk.1.ffn_down.weight is missing; it should have shape \[64, 160\]"),
        (broken("blk.1.ffn_down.weight", np.ones((64, 96), np.float32)), {}, r"shape \[64, 96\]; the metadata asks for \[64, 160\]"),
        (broken("blk.1.extra.weight", np.ones(7, np.float32)), {}, r"blk.1.extra.weight is not part of this model; it has shape \[7\]"),
        (broken("blk.1.ffn_down.weight", np.ones((64, 160), np.float64)), {}, "has type F64; F32, F16"),
        (broken("blk.1.ffn_down.weight", NAN), {}, "blk.1.ffn_down.weight holds NaN or infinity"),
        (broken("token_embd.weight", None), {}, "tensor token_embd.weight is missing"),
        (converted(GOLDEN / "llama_tied_gqa"), {"architecture": "qwen2"}, "architecture 'qwen2' is not supported"),
        (converted(GOLDEN / "llama_tied_gqa"), {"llama__expert_count": 8}, "mixtures of experts are not supported"),
        (converted(GOLDEN / "llama_tied_gqa"), {"llama__rope__dimension_count": 8}, "dimension_count 8 differs from the head size 16"),
        (converted(GOLDEN / "llama_tied_gqa"), {"split__count": 3}, "m.gguf: is one of 3 files that a model was split into; join them"),
        (broken("rope_freqs.weight", np.zeros(8, np.float32)), {}, "m.gguf: Rotary factors must be finite numbers above 0; got 0.0"),
        (converted(GOLDEN / "llama_tied_gqa"), {"llama__rope__scaling__type": "yarn"}, "rotary scaling 'yarn' is not supported"),
        (converted(GOLDEN / "llama_tied_gqa"), {"llama__rope__scaling__type": 3}, "rope.scaling.type must be text; got 3"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_wrong_files_are_named(tensors, metadata, message, tmp_path):
    path = write(tmp_path / "m.gguf", GOLDEN / "llama_tied_gqa", tensors, **metadata)
    with pytest.raises(ModelError, match=message):
        load(path)


@pytest.mark.parametrize("keep", [0, 3, 20, 300, 2000, -4])
def test_truncated_files_are_named(keep, tmp_path):
    folder = GOLDEN / "llama_tied_gqa"
    path = write(tmp_path / "m.gguf", folder, converted(folder))
    short = tmp_path / "short.gguf"
    short.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match="short.gguf is truncated or no GGUF file"):
        load(short)


def test_other_files_are_refused(tmp_path):
    path = shutil.copy(__file__, tmp_path / "text.gguf")
    with pytest.raises(ModelError, match="it does not begin with GGUF"):
        load(path)


def test_damaged_headers_are_refused_in_one_line(tmp_path):
    """Bytes changed, put in, cut off, or made huge numbers: read, or one line; never another error."""
    folder, path = GOLDEN / "llama_tied_gqa", tmp_path / "damaged.gguf"
    whole, rng, refused = write(tmp_path / "m.gguf", folder, converted(folder)).read_bytes(), random.Random(0), 0
    for case in range(300):
        data, place = bytearray(whole), rng.randrange(2500)
        if case % 4 == 0:
            del data[place:]
        elif case % 4 == 1:
            data[place] = rng.randrange(256)
        elif case % 4 == 2:
            data[place : place + 8] = rng.choice((b"\xff" * 8, bytes(8), (1 << 62).to_bytes(8, "little"), (10**9).to_bytes(8, "little")))
        else:
            data[place:place] = bytes([rng.randrange(256)])
        path.write_bytes(data)
        try:
            source = resolve(str(path))
            load_weights(source, load_config(source), dtype=torch.float32, device="cpu")
        except ModelError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 200
