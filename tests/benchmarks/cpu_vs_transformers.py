"""Decode tokens/s and TTFT on this machine's CPU: our torch backend against Transformers in float32, same file, same run.

    python -m tests.benchmarks.cpu_vs_transformers [--rounds 3] [--tokens 48]

Both generate greedily from the same 45-token chat prompt, in one process, in turn. Prints one line each and the ratio.
Transformers' Llama gets the weights of the same GGUF file; all three must write the same tokens. Needs requirements-dev.txt; no network.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from engine.loading import load_config, load_weights
from engine.models import resolve
from engine.request import SamplingParams
from engine.torch_backend import TorchBackend

MODEL = "smollm2-135m-instruct"
GOLDEN = Path(__file__).parent.parent / "golden" / "smollm2.json"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    args = parser.parse_args()
    golden = json.loads(GOLDEN.read_text())["greedy"][0]
    prompt = golden["prompt_ids"]
    runners = {
        "engine, auto": ours("auto"),
        "engine, float32": ours("float32"),
        "Transformers, float32": transformers_float32(),
    }
    figures = {name: [] for name in runners}
    for _ in range(args.rounds):
        for name, run in runners.items():
            times, ids = run(prompt, args.tokens)
            assert ids[:16] == golden["greedy_ids"][:16], f"{name} writes other tokens: {ids}"
            figures[name].append(measure(times))
    print(f"{torch.get_num_threads()} threads, prompt {len(prompt)} tokens, {args.tokens} tokens out, median of {args.rounds} rounds")
    speeds = {}
    for name, rounds in figures.items():
        ttft, speeds[name] = (statistics.median(values) for values in zip(*rounds, strict=True))
        print(f"{name:24} TTFT {ttft * 1e3:7.1f} ms   decode {speeds[name]:6.1f} tokens/s")
    for name in list(runners)[:2]:
        print(f"{name} / Transformers: {speeds[name] / speeds['Transformers, float32']:.2f}")


def measure(times: list[float]) -> tuple[float, float]:
    """(TTFT in s, decode tokens/s) from the start and the moment of each token."""
    return times[1] - times[0], (len(times) - 2) / (times[-1] - times[1])


def ours(dtype: str):
    backend = TorchBackend(MODEL, gpus=0, dtype=dtype)

    def run(prompt, count):
        times, made = [time.monotonic()], []
        generation = backend.start(prompt, SamplingParams(), frozenset(), count)
        while generation.finish_reason is None:
            made += generation.poll(1.0)
        return times + [token.time_ns / 1e9 for token in made], [token.id for token in made]

    return run


def transformers_float32():
    from transformers import LlamaConfig, LlamaForCausalLM

    source = resolve(MODEL)
    config = load_config(source)
    weights = load_weights(source, config, dtype=torch.float32, device="cpu")
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.ffn_size,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            num_key_value_heads=config.n_kv_heads,
            rms_norm_eps=config.norm_eps,
            rope_theta=config.rope_theta,
            max_position_embeddings=config.context_tokens,
            tie_word_embeddings=True,
        )
    ).eval()
    model.load_state_dict(dict(state_dict(config, weights)), strict=False)

    class Clock:
        """A streamer: called with the prompt, then with each token."""

        def __init__(self):
            self.times, self.ids = [], []

        def put(self, value):
            if self.times:  # the first call brings the prompt
                self.ids += value.tolist()
            self.times.append(time.monotonic())

        def end(self):
            pass

    def run(prompt, count):
        clock, ids, start = Clock(), torch.tensor([prompt]), time.monotonic()
        model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=count, max_new_tokens=count, streamer=clock
        )
        return [start, *clock.times[1:]], clock.ids

    return run


def state_dict(config, weights):
    """Our weights under Transformers' names; rows of q and k in its order (the halves of a head instead of pairs)."""
    yield "model.embed_tokens.weight", weights.embedding
    yield "lm_head.weight", weights.head
    yield "model.norm.weight", weights.norm[0]
    for i, layer in enumerate(weights.layers):
        q, k, v = layer.wqkv[0].split([config.q_size, config.kv_size, config.kv_size])
        q, k = (rows.unflatten(0, (-1, config.head_size // 2, 2)).transpose(1, 2).flatten(0, 2) for rows in (q, k))
        gate, up = layer.w13[0].chunk(2)
        names = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": layer.wo[0]}
        names |= {"mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": layer.w2[0]}
        names |= {"input_layernorm": layer.attention_norm[0], "post_attention_layernorm": layer.ffn_norm[0]}
        for name, tensor in names.items():
            yield f"model.layers.{i}.{name}.weight", tensor


if __name__ == "__main__":
    main()
