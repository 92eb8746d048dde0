"""The reference forward against golden logits, the written specification, Transformers, and itself with a cache."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from engine import reference
from engine.errors import InvalidRequest, PromptTooLong
from engine.loading import load_config, load_weights
from engine.models import resolve
from tests.engine import published

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = sorted(path.parent for path in GOLDEN.glob("*/*/config.json"))
TOLERANCE = 1e-4


def load(model, dtype=torch.float32):
    source = resolve(str(model))
    config = load_config(source)
    return config, load_weights(source, config, dtype=dtype, device="cpu")


def greedy(config, weights, prompt, count):
    state = reference.State.new(config, weights)
    logits = reference.prefill(config, weights, state, prompt)[-1]
    ids = []
    for _ in range(count):
        ids.append(int(logits.argmax()))
        logits = reference.step(config, weights, state, ids[-1])
    return ids


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_golden_logits_and_continuation(folder):
    config, weights = load(folder)
    expected = load_file(folder / "expected.safetensors")
    logits = reference.forward(config, weights, expected["input_ids"].tolist())
    assert (logits - expected["logits"]).abs().max() <= TOLERANCE
    ids = expected["greedy"].tolist()
    made = greedy(config, weights, ids[:20], 40)
    for index, (ours, theirs, margin) in enumerate(zip(made, ids[20:], expected["greedy_margin"].tolist(), strict=True)):
        if ours != theirs:
            assert margin < TOLERANCE, f"token {index} differs although the margin is {margin}"
            break  # what follows a tie is another text


def test_smollm2_continues_as_transformers_does():
    config, weights = load("smollm2-135m-instruct")
    cases = json.loads((GOLDEN / "smollm2.json").read_text())["greedy"]
    for case in cases:  # the picks at every place of the known text: one forward pass instead of a hundred steps
        prompt, expected = case["prompt_ids"], case["greedy_ids"]
        logits = reference.forward(config, weights, prompt + expected)
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == expected, case["text"]
    shortest = min(cases, key=lambda case: len(case["greedy_ids"]))
    assert greedy(config, weights, shortest["prompt_ids"], len(shortest["greedy_ids"])) == shortest["greedy_ids"]


def lane_configs():
    """Every arrangement of lanes, delay, exchange, windows, norms and heads that the specification allows."""
    return st.fixed_dictionaries(
        {
            "num_lanes": st.sampled_from([1, 2, 4]),
            "broadcast_delay": st.integers(1, 5),
            "use_comm": st.booleans(),
            "use_early_comm": st.booleans(),
            "sliding_window": st.integers(1, 6),
            "sliding_window_n_layers": st.integers(-4, 4),
            "unclamped_layers": st.lists(st.integers(0, 3), max_size=2),
            "replicated_rmsn_scale": st.booleans(),
            "head": st.sampled_from(["replicate", "tied", "pre_norm", "tied_pre_norm", "lane", "vocab_parallel"]),
            "num_attention_heads": st.sampled_from([4, 8]),
        }
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(options=lane_configs(), seed=st.integers(0, 1000))
def test_laneformer_follows_the_specification(options, seed, tmp_path_factory):
    head = options.pop("head")
    config = published.BASE | options
    config |= {"num_key_value_heads": 4, "tie_word_embeddings": head.startswith("tied"), "pre_norm_lane_agg": head.endswith("pre_norm")}
    config["lm_head_type"] = head if head in ("lane", "vocab_parallel") else "replicate"
    tensors = published.random_tensors(config, seed)
    folder = tmp_path_factory.mktemp("lanes")
    published.write_checkpoint(folder, config, tensors)
    ids = torch.randint(0, 32, (9,), generator=torch.Generator().manual_seed(seed)).tolist()
    expected = torch.from_numpy(published.logits(config, tensors, ids))
    assert (reference.forward(*load(folder), ids) - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("window", [15, 16, 17, 511, 512, 513])
def test_window_counts_the_token_itself(window, tmp_path):
    """The last query of a windowed layer sees exactly ``window`` keys: the one before does not move its logits."""
    config = published.BASE | {"num_hidden_layers": 1, "broadcast_delay": 1, "sliding_window": window, "sliding_window_n_layers": 1}
    config["max_position_embeddings"] = 1024
    published.write_checkpoint(tmp_path, config, published.random_tensors(config))
    parsed, weights = load(tmp_path)
    ids = [5] * (window + 1)
    base = reference.forward(parsed, weights, ids)[-1]
    assert torch.equal(reference.forward(parsed, weights, [9, *ids[1:]])[-1], base)
    assert not torch.equal(reference.forward(parsed, weights, [5, 9, *ids[2:]])[-1], base)


@pytest.mark.parametrize("model", ["random:tiny", "random:tiny-llama", GOLDEN / "llama/mistral_window"], ids=str)
def test_any_split_of_a_prompt_gives_the_same_logits(model):
    config, weights = load(model)
    ids = torch.randint(0, config.vocab_size, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    at_once = reference.forward(config, weights, ids)
    for sizes in ([1] * 60, [17, 1, 1, 41], [15, 16, 17, 12]):
        state, parts, start = reference.State.new(config, weights), [], 0
        for size in sizes:
            parts.append(reference.prefill(config, weights, state, ids[start : start + size]))
            start += size
        assert (torch.cat(parts) - at_once).abs().max() <= TOLERANCE


def test_long_prompts_in_chunks_equal_one_pass(monkeypatch):
    config, weights = load("random:tiny")
    ids = torch.randint(0, config.vocab_size, (200,), generator=torch.Generator().manual_seed(2)).tolist()
    at_once = reference.forward(config, weights, ids)
    monkeypatch.setattr(reference, "CHUNK_ROWS", 64)
    assert (reference.forward(config, weights, ids) - at_once).abs().max() <= TOLERANCE


def test_context_end_is_exact():
    config, weights = load("random:tiny")
    for length in (config.context_tokens - 1, config.context_tokens):
        assert reference.forward(config, weights, [3] * length).shape == (length, config.vocab_size)
    with pytest.raises(PromptTooLong, match="257 tokens; random:tiny takes 256"):
        reference.forward(config, weights, [3] * (config.context_tokens + 1))
    state = reference.State.new(config, weights)
    reference.prefill(config, weights, state, [3] * config.context_tokens)
    with pytest.raises(PromptTooLong):
        reference.step(config, weights, state, 3)


@pytest.mark.parametrize("ids", [[], [-1], [512]])
def test_impossible_prompts_are_refused(ids):
    config, weights = load("random:tiny")
    with pytest.raises(InvalidRequest):
        reference.forward(config, weights, ids)


def hf_variants():
    """Configurations of the four families that differ in what matters to the forward pass."""
    small = dict(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=None, initializer_range=0.2,
    )  # fmt: skip
    llama3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
    yield "llama_linear", "Llama", small | dict(rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=5000.0))
    yield "llama_llama3", "Llama", small | dict(rope_parameters=llama3 | dict(rope_theta=20000.0), head_dim=16)
    yield "llama_mha_tied", "Llama", small | dict(num_key_value_heads=4, tie_word_embeddings=True, rms_norm_eps=1e-3)
    yield "mistral_window", "Mistral", small | dict(sliding_window=7, head_dim=12)
    yield "mistral_full", "Mistral", small | dict(sliding_window=None)
    yield "qwen2_some_windows", "Qwen2", small | dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)
    yield "qwen3", "Qwen3", small | dict(head_dim=16)
    yield "qwen3_tied_windows", "Qwen3", small | dict(head_dim=16, tie_word_embeddings=True, use_sliding_window=True, sliding_window=9,
                                                      max_window_layers=2)  # fmt: skip


@pytest.mark.parametrize(("name", "family", "options"), list(hf_variants()), ids=[name for name, _, _ in hf_variants()])
def test_llama_family_agrees_with_transformers(name, family, options, tmp_path):
    import transformers

    torch.manual_seed(len(name))
    config = getattr(transformers, f"{family}Config")(**options)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("bias", "norm.weight")):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(tmp_path, max_shard_size="20KB" if "linear" in name else "5GB")
    ids = torch.randint(3, 96, (40,)).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    assert (reference.forward(*load(tmp_path), ids) - expected).abs().max() <= TOLERANCE
