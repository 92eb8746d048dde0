"""One benchmark as a function: an engine measured in this process; after it, on request, its rival, or itself on fewer GPUs."""

import gc
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch

from engine.bench.measure import GREEDY, measure
from engine.bench.report import form_text, rival_text, text
from engine.engine import EngineConfig
from engine.errors import InvalidRequest
from engine.request import SamplingParams
from engine.worker import make_backend


def benchmark(
    config: EngineConfig,
    prompt_tokens: int,
    output_tokens: int,
    runs: int,
    sampling: SamplingParams = GREEDY,
    *,
    profile: bool = False,
    with_rival: bool = False,
) -> dict:
    """The report of one engine, printed too: speed, TTFT, bounds, surroundings, with ``profile`` the phases of a token.

    The engine's memory is free again afterwards. ``with_rival`` only checks that ``compare`` can follow.
    Raises InvalidRequest for lengths or choices that cannot be measured, and what loading the model raises.
    """
    if prompt_tokens < 1 or output_tokens < 2 or runs < 1:
        raise InvalidRequest(
            f"The benchmark needs at least 1 prompt token, 2 output tokens and 1 run; got {prompt_tokens}, {output_tokens} and {runs}."
        )
    if (with_rival or profile) and sampling.temperature:
        raise InvalidRequest("--compare and --profile are of greedy decoding; leave out --temperature.")
    length = prompt_tokens + output_tokens
    backend = make_backend(replace(config, context_tokens=length), lambda progress: None)
    try:
        info = backend.info
        if length > info.context_tokens:
            raise InvalidRequest(f"{length:,} tokens do not fit {config.model}, which takes {info.context_tokens:,}.")
        gpus = info.gpus if info.backend == "monokernel" else 0
        if (with_rival and gpus != 1) or (profile and not gpus):
            raise InvalidRequest("--compare needs the monokernel on one GPU, --profile on one or more.")
        speed = measure(backend, prompt_tokens, output_tokens, runs, sampling)
        report = {"engine": asdict(info), "speed": speed.to_dict(), **_surroundings(backend)}
        report["sampling"] = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}
        if info.gpus > 1:
            report["exchange"] = _exchange(backend, output_tokens)
        report |= _bounds(info, speed.decode_tokens_per_s)
        if profile:
            from engine.bench.profile import profile_decode

            report["profile"] = [phase.to_dict() for phase in profile_decode(backend, prompt_tokens)]
        print(text(report), flush=True)
        return report
    finally:
        backend.close()
        del backend
        _free_memory()


def compare(report: dict) -> Iterator[dict]:
    """The rival of a report's engine, on the same GPU and the same weights, which are loaded again: of the engine nothing is left.

    What is known so far, after each form, which is printed too: {"forms": [each form's speed], "failed": {name: why}, "best": its name,
    "ratio": engine over best, "memory_before": bytes}. ``best`` and ``ratio`` are None as long as no form has run.
    """
    from engine.bench.rival import FormSpeed, measure_rival
    from engine.loading import load_config, load_weights
    from engine.models import resolve

    source, device = resolve(report["engine"]["model"]), torch.device("cuda", 0) if report["engine"]["gpus"] else torch.device("cpu")
    config, speed = load_config(source), report["speed"]
    result = {"forms": [], "failed": {}, "best": None, "ratio": None, "memory_before": _allocated(device)}
    print(
        f"rival          begins with {result['memory_before'] / 1e6:,.0f} MB of the engine left on the GPU; loading its weights", flush=True
    )
    weights = load_weights(source, config, dtype=getattr(torch, report["engine"]["dtype"]), device=device)
    for made in measure_rival(config, weights, speed["prompt_tokens"], speed["output_tokens"], speed["runs"]):
        if isinstance(made, FormSpeed):
            result["forms"].append(made.to_dict())
            best = max(result["forms"], key=lambda form: form["decode_tokens_per_s"])
            result |= {"best": best["name"], "ratio": speed["decode_tokens_per_s"] / best["decode_tokens_per_s"]}
            print(form_text(result["forms"][-1]), flush=True)
        else:
            result["failed"][made[0]] = made[1]
            print(f"rival          {made[0]}: PyTorch failed: {made[1]}", flush=True)
        yield result
    print(rival_text(result), flush=True)


def scale(config: EngineConfig, report: dict, path: Path) -> None:
    """Measure the same on fewer GPUs, and write tokens/s over GPUs, predicted and measured, as SVG."""
    from engine.bench.scaling import H200, MI300X, write_scaling_plot
    from engine.loading import load_config
    from engine.models import resolve

    info, speed = report["engine"], report["speed"]
    machine = MI300X if "MI300X" in info["device"] else H200
    measured = {info["gpus"]: speed["decode_tokens_per_s"]} if machine.name in info["device"] else {}
    for count in (1, 2, 4, 8):
        if measured and count < info["gpus"]:
            sampling = SamplingParams(**report["sampling"])
            fewer = benchmark(replace(config, gpus=count), speed["prompt_tokens"], speed["output_tokens"], speed["runs"], sampling)
            measured[count] = fewer["speed"]["decode_tokens_per_s"]
            print(f"scaling        {info['gpus']} GPUs are {measured[info['gpus']] / measured[count]:.2f} x {count}", flush=True)
    write_scaling_plot(load_config(resolve(config.model)), machine, dict(sorted(measured.items())), path)


def _free_memory() -> None:
    """What the engine held goes back to the GPU: runs and backends refer to each other, and torch keeps freed memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _allocated(device: torch.device) -> int:
    """Bytes of the GPU's memory that tensors of this process take."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _exchange(backend, output_tokens: int) -> dict:
    """Per token, of the last run: what a processor of GPU 0 waited for others (us, by kind), and the bytes it pushed to them."""
    waits = {f"{kind}_wait_us": value / output_tokens for kind, value in backend.waited_us().items()}
    return waits | {"pushed_bytes": backend.path.pushed_bytes, "layers": backend.config.n_layers}


def _bounds(info, tokens_per_s: float) -> dict:
    """MBU = weight bytes per token x tokens/s over the bandwidth, measured in this process or of the datasheet."""
    rate = info.bytes_per_token * tokens_per_s
    return {
        "read_bandwidth": info.measured_bytes_per_s,
        "bound_tokens_per_s": info.bound_tokens_per_s,
        "mbu_measured": rate / info.measured_bytes_per_s if info.measured_bytes_per_s else None,
        "mbu_datasheet": rate / info.datasheet_bytes_per_s if info.datasheet_bytes_per_s else None,
    }


def _surroundings(backend) -> dict:
    try:
        from triton import __version__ as triton_version
    except ImportError:
        triton_version = None
    path = getattr(backend, "path", None)
    return {
        "kernel": path.name if path else "torch",
        "kernel_speeds_at_warm_up": getattr(backend, "speeds", {}),
        "torch": torch.__version__,
        "triton": triton_version,
        "driver": backend.info.driver,
    }
