"""Checkpoint folders: types, shards, memory, what is refused and how; writing a checkpoint and reading it back."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import reference
from engine.config import Head, ModelConfig
from engine.errors import ModelError
from engine.loading import load_config, load_weights, open_reader
from engine.loading.export import export
from engine.loading.random import RandomReader
from engine.models import resolve
from engine.request import Progress
from engine.shapes import SHAPES
from engine.weights import ModelWeights, Shard
from tests.engine import published

GOLDEN = Path(__file__).parents[1] / "golden"
LLAMA = GOLDEN / "llama/llama_tied_gqa"
QWEN = GOLDEN / "llama/qwen2_bias"
LANES = GOLDEN / "laneformer/dtp8"


def load(folder, dtype=torch.float32, **options):
    source = resolve(str(folder))
    config = load_config(source)
    return config, load_weights(source, config, dtype=dtype, device="cpu", **options)


def copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / folder.name))


def rewrite(folder: Path, change) -> None:
    """``change`` the tensors of a folder in place."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def assert_same(a: ModelWeights, b: ModelWeights) -> None:
    ours, theirs = dict(a.tensors()), dict(b.tensors())
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("folder", [LLAMA, QWEN, LANES, GOLDEN / "laneformer/dtp8_lane_norms"], ids=lambda folder: folder.name)
def test_parameters_and_bytes_are_those_of_the_file(folder):
    config, weights = load(folder, torch.float16)
    stored = load_file(folder / "model.safetensors")
    assert config.parameters == sum(tensor.numel() for tensor in stored.values())
    assert weights.nbytes == 2 * config.parameters


def test_rotary_rows_of_llama_checkpoints_are_interleaved():
    config, weights = load(QWEN)
    stored = load_file(QWEN / "model.safetensors")
    h, q = config.head_size, config.q_size
    for suffix, ours in (("weight", weights.layers[1].wqkv[0]), ("bias", weights.layers[1].qkv_bias[0])):
        theirs = {name: stored[f"model.layers.1.self_attn.{name}_proj.{suffix}"] for name in "qkv"}
        for head in range(config.n_heads):
            for j in range(h // 2):
                for pair, half in ((0, j), (1, j + h // 2)):
                    assert torch.equal(ours[head * h + 2 * j + pair], theirs["q"][head * h + half])
        assert torch.equal(ours[q + 1], theirs["k"][h // 2])
        assert torch.equal(ours[q + config.kv_size :], theirs["v"])


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.bfloat16])
def test_stored_and_wanted_types(stored, wanted, tmp_path):
    folder = copy(LLAMA, tmp_path)
    rewrite(folder, lambda tensors: tensors.update({name: tensor.to(stored) for name, tensor in tensors.items()}))
    _, weights = load(folder, wanted)
    expected = load_file(LLAMA / "model.safetensors")["model.layers.0.mlp.down_proj.weight"].to(stored).to(wanted)
    assert torch.equal(weights.layers[0].w2[0], expected)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("folder", [LANES, GOLDEN / "laneformer/dtp8_lane_norms", GOLDEN / "laneformer/dtp8_vocab_parallel"], ids=str)
def test_shards_of_lanes_are_slices_of_the_whole(folder, ranks):
    config, whole = load(folder)
    for rank in range(ranks):
        _, part = load(folder, shard=Shard(rank, ranks))
        lanes = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
        for ours, all_lanes in zip(part.layers, whole.layers, strict=True):
            for name in ("wqkv", "wo", "w13", "w2"):
                assert torch.equal(getattr(ours, name), getattr(all_lanes, name)[lanes]), name
            expected = all_lanes.ffn_norm[lanes] if config.lane_norms else all_lanes.ffn_norm
            assert torch.equal(ours.ffn_norm, expected)
        rows = slice(rank * 256 // ranks, (rank + 1) * 256 // ranks)
        assert torch.equal(part.head, whole.head[lanes] if config.head == Head.VOCAB_PARALLEL else whole.head[rows])
        assert torch.equal(part.embedding, whole.embedding)


@pytest.mark.parametrize("model", [str(QWEN), str(GOLDEN / "laneformer/lane1"), "random:tiny-llama"])
def test_shards_of_heads_sum_to_the_whole(model):
    """With one lane a rank has some heads and FFN columns: outputs of the ranks add up, logits join."""
    config, whole = load(model)
    n = torch.randn(1, 5, config.hidden_size)
    state = reference.State.new(config, whole)
    positions = torch.arange(5)

    def outputs(settings: ModelConfig, layer) -> torch.Tensor:
        q, k, v = reference.qkv(settings, layer, n, positions, state.inverse_frequencies)
        heads = reference.attention(q, k, v, positions, None)
        return reference.output_projection(layer, heads) + reference.mlp(layer, n)

    sharded = replace(config, n_heads=config.n_heads // 2, n_kv_heads=config.n_kv_heads // 2)
    parts = [load(model, shard=Shard(rank, 2))[1] for rank in (0, 1)]
    for layer, *shards in zip(whole.layers, *(part.layers for part in parts), strict=True):
        assert torch.allclose(sum(outputs(sharded, shard) for shard in shards), outputs(config, layer), atol=1e-4)
    assert torch.equal(torch.cat([part.head for part in parts]), whole.head)


def test_impossible_shards_are_refused():
    with pytest.raises(ModelError, match="8 lanes do not divide over 3 GPUs"):
        load(LANES, shard=Shard(0, 3))
    with pytest.raises(ModelError, match="Rank 2 does not exist among 2 GPUs"):
        load(LANES, shard=Shard(2, 2))


def test_progress_goes_from_zero_to_one():
    steps: list[Progress] = []
    load(LANES, on_progress=steps.append)
    fractions = [step.fraction for step in steps]
    assert fractions == sorted(fractions) and fractions[0] == 0.0 and fractions[-1] == 1.0
    assert {step.stage for step in steps} == {"load"} and "Layer 3 of 5" in [step.detail for step in steps]


def _drop(name):
    return lambda tensors: tensors.pop(name)


def _drop_all(tensors):
    tensors.clear()
    tensors["other"] = torch.ones(1)


def _put(name, tensor):
    return lambda tensors: tensors.update({name: tensor})


def _spoil(name, value):
    def change(tensors):
        tensors[name].view(-1)[-1] = value

    return change


DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("folder", "change", "message"),
    [
        (LLAMA, _drop(DOWN), rf"tensor {DOWN} is missing; {DOWN} should have shape \[64, 160\]"),
        (LLAMA, _drop_all, "tensors model.embed_tokens.weight, .* and 26 more are missing"),
        (LLAMA, _put("model.extra", torch.ones(3, 4)), r"tensor model.extra is not part of this model; model.extra has shape \[3, 4\]"),
        (LLAMA, _put(DOWN, torch.ones(64, 161)), rf"tensor {DOWN} has shape \[64, 161\]; config.json asks for \[64, 160\]"),
        (LLAMA, _put(DOWN, torch.ones(64, 160, dtype=torch.int32)), f"tensor {DOWN} has type I32; F32, F16, BF16 are read"),
        (LLAMA, _spoil(DOWN, float("nan")), f"tensor {DOWN} holds NaN or infinity"),
        (LANES, _spoil("model.norm.weight", float("inf")), "tensor model.norm.weight holds NaN or infinity"),
        (LANES, _put("model.norm.weight", torch.ones(8, 64)), r"model.norm.weight has shape \[8, 64\]; config.json asks for \[64\]"),
        (LANES, _drop("lm_head.weight"), "tensor lm_head.weight is missing"),
        (QWEN, _drop("model.layers.0.self_attn.k_proj.bias"), "tensor model.layers.0.self_attn.k_proj.bias is missing"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_wrong_tensors_are_named(folder, change, message, tmp_path):
    folder = copy(folder, tmp_path)
    rewrite(folder, change)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_numbers_beyond_float16_are_refused_rather_than_made_infinite(tmp_path):
    folder = copy(LLAMA, tmp_path)
    rewrite(folder, _spoil(DOWN, -70000.0))
    load(folder, torch.bfloat16)
    with pytest.raises(ModelError, match=f"tensor {DOWN} holds 70000, which float16 cannot hold; use bfloat16 or float32"):
        load(folder, torch.float16)


def test_a_stored_head_beside_a_tied_embedding_and_old_rotary_buffers_are_ignored(tmp_path):
    folder = copy(LLAMA, tmp_path)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    rewrite(folder, _put("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8)))
    assert_same(load(folder)[1], load(LLAMA)[1])


@pytest.mark.parametrize("head", [torch.ones(256, 64), torch.ones(4, 64)])
def test_another_head_beside_a_tied_embedding_is_refused(head, tmp_path):
    """Transformers 5 takes it for the head in spite of the configuration, earlier versions did not."""
    folder = copy(LLAMA, tmp_path)
    rewrite(folder, _put("lm_head.weight", head))
    with pytest.raises(ModelError, match="lm_head.weight differs from model.embed_tokens.weight, but tie_word_embeddings says"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_truncated_files_are_named(keep, tmp_path):
    folder = copy(LLAMA, tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:keep])
    with pytest.raises(ModelError, match="model.safetensors is truncated or no safetensors file"):
        load(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may read every file")
def test_files_that_may_not_be_read_are_said_to_be_so(tmp_path):
    folder = copy(LLAMA, tmp_path)
    for path in (folder / "model.safetensors", folder):
        path.chmod(0)
        with pytest.raises(ModelError, match=f"{re.escape(str(path))} cannot be read: Permission denied"):
            load(folder)
        path.chmod(0o700)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "neither model.safetensors nor model.safetensors.index.json is there"),
        ({"pytorch_model.bin": "x"}, "only pickled weights, which the engine does not open"),
        ({"model.safetensors.index.json": "{"}, "cannot be read as JSON"),
        ({"model.safetensors.index.json": "[" * 100_000}, "cannot be read as JSON: maximum recursion depth exceeded"),
        ({"model.safetensors.index.json": "{}"}, "weight_map is missing or empty"),
        ({"model.safetensors.index.json": '{"weight_map": {"a": "one.safetensors"}}'}, "one.safetensors is missing; .* names it"),
        ({"model.safetensors.index.json": '{"weight_map": {"a": "../one.safetensors"}}'}, "'../one.safetensors' is no plain file name"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_folders_without_readable_weights(files, message, tmp_path):
    folder = copy(LLAMA, tmp_path)
    (folder / "model.safetensors").unlink()
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    folder = copy(LLAMA, tmp_path)
    shutil.copy(folder / "model.safetensors", folder / "two.safetensors")
    index = {"weight_map": {"a": "model.safetensors", "b": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="two.safetensors: tensor .* is stored twice, also in model.safetensors"):
        load(folder)


@pytest.mark.parametrize("folder", sorted(path.parent for path in GOLDEN.glob("*/*/config.json")), ids=lambda folder: folder.name)
def test_export_writes_what_was_published(folder, tmp_path):
    source = resolve(str(folder))
    config = load_config(source)
    export(config, open_reader(source, config), tmp_path / "out", torch.float32)
    ours, theirs = load_file(tmp_path / "out/model.safetensors"), load_file(folder / "model.safetensors")
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert replace(load_config(resolve(str(tmp_path / "out"))), name=config.name) == config


@pytest.mark.parametrize("shape", ["tiny", "tiny-llama"])
def test_random_weights_survive_export_in_several_files(shape, tmp_path):
    config = SHAPES[shape]
    size = export(config, RandomReader(config), tmp_path, torch.float16, file_bytes=500_000)
    assert size == 2 * config.parameters and len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_same(load(tmp_path, torch.float16)[1], load(f"random:{shape}", torch.float16)[1])
    with pytest.raises(ModelError, match="is not empty"):
        export(config, RandomReader(config), tmp_path, torch.float16)


@pytest.mark.parametrize(
    "options",
    [
        {"broadcast_delay": 0},
        {"broadcast_delay": 9},
        {"use_comm": False},
        {"use_early_comm": False, "sliding_window_n_layers": -2, "unclamped_layers": [2]},
        {"num_lanes": 1, "lm_head_type": "lane", "replicated_rmsn_scale": False},
    ],
    ids=str,
)
def test_exported_settings_mean_the_same(options, tmp_path):
    settings = published.BASE | options
    published.write_checkpoint(tmp_path / "in", settings, published.random_tensors(settings))
    source = resolve(str(tmp_path / "in"))
    config = load_config(source)
    export(config, open_reader(source, config), tmp_path / "out", torch.float32)
    ids = [1, 5, 9, 30, 2, 2, 17]
    if options.get("broadcast_delay") == 0:  # every exchange is of the present layer, which the specification calls a long delay
        settings = settings | {"broadcast_delay": settings["num_hidden_layers"]}
    expected = torch.from_numpy(published.logits(settings, load_file(tmp_path / "out/model.safetensors"), ids))
    assert (reference.forward(*load(tmp_path / "out"), ids) - expected).abs().max() <= 1e-4


def test_a_model_that_the_published_keys_cannot_describe_is_not_exported(tmp_path):
    config = replace(SHAPES["tiny"], windows=(16, 8, None, None, None))
    with pytest.raises(ModelError, match="the keys of config.json cannot describe this model"):
        export(config, RandomReader(config), tmp_path, torch.float16)
    assert not list(tmp_path.iterdir())


MEASURE = """
import resource, sys, torch
from engine.loading import load_config, load_weights
from engine.models import resolve
import engine.loading.assemble, engine.loading.gguf, engine.loading.safetensors
source = resolve(sys.argv[1])
config = load_config(source)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
weights = load_weights(source, config, dtype=torch.float16, device="cpu")
print((peak() - before) / weights.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is measured in the units of Linux")
@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_peak_memory_stays_within_a_fifth_above_the_weights(kind, tmp_path):
    model = "smollm2-135m-instruct"
    if kind == "folder":
        config = SHAPES["smollm2-135m"]
        export(config, RandomReader(config), tmp_path, torch.float16)
        model = str(tmp_path)
    run = subprocess.run([sys.executable, "-c", MEASURE, model], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    assert float(run.stdout) <= 1.2
