"""The model description checks itself and derives sizes; config.json is read in every published spelling."""

import json
import math
from dataclasses import replace

import pytest
import torch

from engine.config import Head, ModelConfig, Reduction, RopeScaling
from engine.errors import ModelError, UnknownModel
from engine.loading import load_config, pick_dtype
from engine.models import REGISTRY, resolve
from engine.shapes import SHAPES
from tests.engine import published

TINY = SHAPES["tiny"]
LLAMA_JSON = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


def parsed(tmp_path, settings, generation=None) -> ModelConfig:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return load_config(resolve(str(tmp_path)))


def test_laneformer_2b_has_the_published_size():
    config = SHAPES["laneformer-2b"]
    assert config.parameters == 2_320_069_632
    assert config.bytes_per_token(2) == 2 * (2_320_069_632 - 32000 * 3072 + 3072)
    assert config.kv_bytes_per_token(2) == 15 * 6144
    assert (config.heads_per_lane, config.kv_heads_per_lane, config.ffn_per_lane) == (4, 2, 1536)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("qwen2.5-coder-7b", 7_615_616_512),
    ],
)
def test_named_shapes_have_the_published_sizes(shape, parameters):
    assert SHAPES[shape].parameters == parameters


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "gpt2"}, "architecture must be one of .*; got 'gpt2'"),
        ({"n_layers": 0, "reductions": (), "windows": ()}, "n_layers must be a whole number of at least 1; got 0"),
        ({"n_layers": 10**8, "reductions": (), "windows": ()}, "n_layers must be at most 1,024; got 100,000,000"),
        ({"vocab_size": 10**15}, "vocab_size must be at most 2,147,483,647; got 1,000,000,000,000,000"),
        ({"head_size": 10**400}, "head_size must be at most 2,147,483,647; got 10,000,000"),
        ({"rope_theta": 10**400}, "rope_theta must be a finite number greater than 1; got 1000"),
        ({"vocab_size": 1.5}, "vocab_size must be a whole number of at least 1; got 1.5"),
        ({"head_size": 15}, "head_size must be even, .*; got 15"),
        ({"n_heads": 12}, "12 query heads do not divide over 8 KV heads"),
        ({"n_kv_heads": 4}, "n_kv_heads 4 does not divide over 8 lanes"),
        ({"ffn_size": 513}, "ffn_size 513 does not divide over 8 lanes"),
        ({"norm_eps": 0.0}, "norm_eps must be a finite number greater than 0; got 0.0"),
        ({"rope_theta": math.nan}, "rope_theta must be a finite number greater than 1; got nan"),
        ({"windows": (16,)}, r"windows needs one entry per layer \(5\); got 1"),
        ({"windows": (0, None, None, None, None)}, "the attention window of layer 0 must lie between 1 and 1,073,741,824; got 0"),
        ({"delay": 3}, "layer 2 takes lane outputs from 3 layers ago; the delay must lie between 1 and 2"),
        ({"delay": 0}, "layer 2 takes lane outputs from 0 layers ago"),
        ({"head": Head.VOCAB_PARALLEL, "vocab_size": 510}, "a vocabulary that divides over the lanes; got 510 over 8"),
        ({"head": Head.LANE, "tied_head": True}, "a lane head cannot share the embedding"),
        ({"eos_ids": (2, 512)}, "special token 512 lies outside the vocabulary of 512"),
        ({"dtype": "int8"}, "dtype must be float32, float16 or bfloat16; got 'int8'"),
        ({"rope_scaling": RopeScaling("factors", factors=(1.0,))}, r"rotary factors: 1 given, 8 needed"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_impossible_models_are_named(changes, message):
    with pytest.raises(ModelError, match=message):
        replace(TINY, **changes)


@pytest.mark.parametrize(
    "arguments", [("yarn", 2.0), ("linear", 0.5), ("llama3", 8.0, 4.0, 1.0), ("llama3", 8.0, 0.0, 1.0), ("llama3", 8.0, 1.0, 4.0, 0)]
)
def test_impossible_rotary_scaling_is_refused(arguments):
    with pytest.raises(ModelError):
        RopeScaling(*arguments)


def test_ranks_must_divide_lanes_or_heads():
    TINY.check_ranks(8)
    with pytest.raises(ModelError, match="8 lanes do not divide over 3 GPUs"):
        TINY.check_ranks(3)
    with pytest.raises(ModelError, match="9 query heads do not divide over 2 GPUs"):
        SHAPES["smollm2-135m"].check_ranks(2)
    with pytest.raises(ModelError, match="4 KV heads do not divide over 7 GPUs"):
        SHAPES["qwen2.5-coder-7b"].check_ranks(7)


def test_llama3_frequencies_follow_their_definition():
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    config = replace(SHAPES["llama-3.1-8b"], rope_scaling=scaling)
    plain = replace(config, rope_scaling=None).rope_inverse_frequencies().double()
    for scaled, base in zip(config.rope_inverse_frequencies().double().tolist(), plain.tolist(), strict=True):
        turns = 8192 * base / (2 * math.pi)  # of this pair over the original context
        kept = min(max((turns - 1.0) / (4.0 - 1.0), 0.0), 1.0)
        assert scaled == pytest.approx(base * (kept + (1 - kept) / 8.0), rel=1e-5)
    linear = replace(config, rope_scaling=RopeScaling("linear", 4.0)).rope_inverse_frequencies()
    assert torch.allclose(linear.double(), plain / 4)


def test_both_spellings_of_rotary_settings_agree(tmp_path):
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = parsed(tmp_path, LLAMA_JSON | {"rope_theta": 5e5, "rope_scaling": scaling | {"rope_type": "llama3"}})
    new = parsed(tmp_path, LLAMA_JSON | {"rope_parameters": scaling | {"rope_type": "llama3", "rope_theta": 5e5}})
    oldest = parsed(tmp_path, LLAMA_JSON | {"rope_theta": 5e5, "rope_scaling": scaling | {"type": "llama3"}})
    assert old == new == oldest and old.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 64)
    assert parsed(tmp_path, LLAMA_JSON).rope_theta == 10_000.0
    assert parsed(tmp_path, LLAMA_JSON | {"rope_scaling": {"type": "linear", "factor": 2}}).rope_scaling == RopeScaling("linear", 2)


def test_the_original_context_beside_a_rotary_setting_counts_more_than_in_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    settings = LLAMA_JSON | {"rope_scaling": scaling, "original_max_position_embeddings": 32}
    config = parsed(tmp_path, settings)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    assert config.rope_scaling.original_context_tokens == 32
    assert torch.allclose(config.rope_inverse_frequencies(), model.model.rotary_emb.inv_freq)


@pytest.mark.parametrize("change", [{}, {"sliding_window": None}, {"sliding_window": 16}], ids=str)
@pytest.mark.parametrize("base", [{"model_type": "mistral"}, {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0}])
def test_a_window_that_is_not_named_is_the_published_one(base, change, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = parsed(tmp_path, LLAMA_JSON | base | change)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path).sliding_window
    assert config.layer_windows == (theirs, theirs) and theirs == change.get("sliding_window", 4096)


def test_errors_of_a_rotary_setting_name_the_file(tmp_path):
    with pytest.raises(ModelError, match=r"config.json: The factor of the linear rotary scaling must be .* at least 1; got 0.5"):
        parsed(tmp_path, LLAMA_JSON | {"rope_scaling": {"type": "linear", "factor": 0.5}})


def test_end_of_sequence_ids_are_the_union_of_both_files(tmp_path):
    config = parsed(tmp_path, LLAMA_JSON | {"bos_token_id": 1, "eos_token_id": [2, 7]}, {"eos_token_id": [7, 9]})
    assert (config.bos_id, config.eos_ids) == (1, (2, 7, 9))
    assert parsed(tmp_path, LLAMA_JSON | {"eos_token_id": 3}, {"eos_token_id": 3}).eos_ids == (3,)
    assert parsed(tmp_path, LLAMA_JSON, {}).eos_ids == ()


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ({"sliding_window_n_layers": 1}, (4, None, None, None)),
        ({"sliding_window_n_layers": -1}, (None, None, None, 4)),
        ({"sliding_window_n_layers": 3, "unclamped_layers": [1]}, (4, None, 4, None)),
        ({"sliding_window_n_layers": -4, "unclamped_layers": [0, 3]}, (None, 4, 4, None)),
        ({"sliding_window_n_layers": 0}, ()),
        ({"sliding_window": None}, ()),
    ],
)
def test_lane_windows(options, windows, tmp_path):
    assert parsed(tmp_path, published.BASE | options).windows == windows


@pytest.mark.parametrize(
    ("options", "reductions"),
    [
        ({}, "present present past past"),
        ({"use_early_comm": False}, "none none past past"),
        ({"use_comm": False}, "present present none none"),
        ({"use_comm": False, "use_early_comm": False}, "none none none none"),
        ({"broadcast_delay": 9}, "present present present present"),
        ({"broadcast_delay": 0}, "present present present present"),
        ({"broadcast_delay": 1}, "present past past past"),
    ],
)
def test_lane_reductions(options, reductions, tmp_path):
    assert parsed(tmp_path, published.BASE | options).reductions == tuple(Reduction(kind) for kind in reductions.split())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (LLAMA_JSON | {"model_type": "gemma2"}, "model_type 'gemma2' is not supported. The engine runs laneformer_tp, llama"),
        (LLAMA_JSON | {"hidden_size": None}, "hidden_size is missing"),
        (LLAMA_JSON | {"hidden_size": "64"}, "hidden_size must be a whole number; got '64'"),
        (LLAMA_JSON | {"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false; got 1"),
        (LLAMA_JSON | {"num_attention_heads": 5}, "hidden_size 64 does not divide over num_attention_heads 5"),
        (LLAMA_JSON | {"rope_scaling": {"type": "yarn", "factor": 2}}, "rotary scaling 'yarn' is not supported"),
        (LLAMA_JSON | {"rope_scaling": {"type": "linear"}}, "factor is missing"),
        (LLAMA_JSON | {"rope_scaling": {"type": "linear", "factor": math.inf}}, "must be a finite number of at least 1; got inf"),
        (LLAMA_JSON | {"rope_scaling": {"type": "linear", "factor": math.nan}}, "must be a finite number of at least 1; got nan"),
        (
            LLAMA_JSON | {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            "rope_theta 10000.0 and the rope_theta 500000.0 of the rotary setting disagree",
        ),
        (
            LLAMA_JSON | {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "linear", "factor": 4}},
            r"factor of rope_scaling \(2\) and of rope_parameters \(4\) disagree",
        ),
        (LLAMA_JSON | {"num_hidden_layers": 10**8}, "num_hidden_layers must lie between 1 and 1,024; got 100,000,000"),
        (
            LLAMA_JSON | {"model_type": "mistral", "sliding_window": 8, "num_hidden_layers": 10**8},
            "num_hidden_layers must lie between 1 and 1,024; got 100,000,000",
        ),
        (LLAMA_JSON | {"rope_scaling": [2]}, r"rope_scaling must be an object; got \[2\]"),
        (LLAMA_JSON | {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "'one setting per layer type' is not supported"),
        (
            LLAMA_JSON | {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}},
            r"rope_scaling \(linear\) and rope_parameters \(default\) disagree",
        ),
        (LLAMA_JSON | {"partial_rotary_factor": 0.5}, "rotary embedding of a part of the head"),
        (LLAMA_JSON | {"attention_bias": True}, "attention_bias: biases of output and MLP projections are not supported"),
        (LLAMA_JSON | {"mlp_bias": True}, "mlp_bias"),
        (LLAMA_JSON | {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; only silu is"),
        (LLAMA_JSON | {"quantization_config": {"quant_method": "awq"}}, "quantised checkpoints are not supported"),
        (LLAMA_JSON | {"eos_token_id": "2"}, "eos_token_id must be a whole number or a list of them; got '2'"),
        (LLAMA_JSON | {"eos_token_id": 100}, "special token 100 lies outside the vocabulary of 100"),
        (LLAMA_JSON | {"torch_dtype": "int4"}, "dtype must be float32, float16 or bfloat16; got 'int4'"),
        (
            LLAMA_JSON | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "layer_types": ["chunked_attention"]},
            "layer_types: chunked_attention is not supported",
        ),
        (LLAMA_JSON | {"model_type": "mistral", "sliding_window": 4, "layer_types": 5}, "layer_types must be a list of names; got 5"),
        (published.BASE | {"lm_head_type": "mixture"}, "lm_head_type must be replicate, lane or vocab_parallel; got 'mixture'"),
        (
            published.BASE | {"lm_head_type": "lane", "pre_norm_lane_agg": True},
            "pre_norm_lane_agg needs lm_head_type replicate; got 'lane'",
        ),
        (published.BASE | {"lm_head_type": "lane", "tie_word_embeddings": True}, "a lane head cannot share the embedding"),
        (published.BASE | {"broadcast_delay": -1}, "broadcast_delay must be at least 0; got -1"),
        (published.BASE | {"num_lanes": 3}, "n_heads 4 does not divide over 3 lanes"),
        (published.BASE | {"sliding_window": 0}, "the attention window of layer 0 must lie between 1 and 1,073,741,824; got 0"),
        (published.BASE | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rotary scaling is not part of laneformer_tp"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:40],
)
def test_configurations_that_are_refused(settings, message, tmp_path):
    with pytest.raises(ModelError, match=message):
        parsed(tmp_path, settings)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_broken_json_names_the_file(text, tmp_path):
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelError, match="config.json"):
        load_config(resolve(str(tmp_path)))


def test_remote_code_in_a_configuration_is_never_run(tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    config = parsed(tmp_path, LLAMA_JSON | {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}})
    assert config.architecture == "llama"


def test_what_a_model_argument_means(tmp_path):
    assert resolve("smollm2-135m-instruct").kind == "gguf"
    assert resolve("laneformer-2b").repo == "kogai/laneformer-2b-it"
    assert resolve("someone/some-model").kind == "hub"
    assert resolve("random:tiny").shape == "tiny"
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path)).path == tmp_path
    (tmp_path / "A.GGUF").touch()
    assert resolve(str(tmp_path / "A.GGUF")).kind == "gguf"
    with pytest.raises(ModelError, match="config.json is no .gguf file by its name. Of other checkpoints give the folder."):
        resolve(str(tmp_path / "config.json"))
    with pytest.raises(ModelError, match="aaa cannot be read: File name too long"):
        resolve("a" * 5000)
    for model in ("nope", "random:nope", str(tmp_path / "no.gguf"), "~no such user/model"):
        with pytest.raises(UnknownModel):
            resolve(model)
    assert set(REGISTRY) == {"smollm2-135m-instruct", "laneformer-2b"}


def test_auto_dtype():
    assert pick_dtype("auto", TINY, "cpu") == torch.float32
    assert pick_dtype("auto", SHAPES["llama-3.1-8b"], "cuda") == torch.bfloat16
    assert pick_dtype("auto", replace(TINY, dtype="float32"), "cuda") == torch.float16
    assert pick_dtype("bfloat16", TINY, "cpu") == torch.bfloat16


ODD = (
    None,
    0,
    -1,
    1,
    3,
    10**8,
    10**15,
    10**30,
    10**400,
    0.5,
    math.inf,
    -math.inf,
    math.nan,
    1e-320,
    "x",
    "",
    [],
    [1],
    [None],
    {},
    {"a": 1},
    True,
)
ROPE = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "base", [LLAMA_JSON, LLAMA_JSON | {"model_type": "mistral", "sliding_window": 8}, published.BASE], ids=lambda b: b["model_type"]
)
def test_no_value_of_any_key_is_more_than_an_error(base, tmp_path):
    """Every odd value of every key is read, or refused in one line, and never takes long."""
    optional = ("head_dim", "dtype", "bos_token_id", "eos_token_id", "sliding_window", "layer_types", "rope_theta", "rope_scaling")
    changed = [{key: value} for key in dict.fromkeys((*base, *optional, "hidden_act", "quantization_config")) for value in ODD]
    changed += [
        {"rope_parameters": ROPE | {"rope_type": kind, key: value}} for kind in ("linear", "llama3") for key in ROPE for value in ODD
    ]
    read = 0
    for changes in changed:
        try:
            config = parsed(tmp_path, base | changes)
            if config.head_size <= 256:  # tensors of other sizes are refused before
                config.rope_inverse_frequencies()
            assert config.bytes_per_token(2) > 0
            read += 1
        except ModelError as error:
            assert "\n" not in str(error)
    assert 0 < read < len(changed)
