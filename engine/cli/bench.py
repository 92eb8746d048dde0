"""python -m engine bench MODEL: decode speed, TTFT, read bandwidth, the rival, a profile."""

import argparse
import json
from pathlib import Path

from engine.cli.common import add_backend, add_dtype, add_model, check_writable
from engine.errors import InvalidRequest


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("bench", help="measure decode speed and time to first token")
    add_model(parser)
    parser.add_argument("--gpus", type=int, default=None, metavar="N", help="GPUs to use (default: one; 0: the CPU)")
    parser.add_argument("--prompt-tokens", type=int, default=128, metavar="P")
    parser.add_argument("--output-tokens", type=int, default=512, metavar="N")
    parser.add_argument("--runs", type=int, default=5, metavar="R", help="runs after warm-up, of which the median counts")
    parser.add_argument("--compare", action="store_true", help="also measure PyTorch with torch.compile and CUDA graphs, on a GPU")
    parser.add_argument("--profile", action="store_true", help="time, wait and bytes of every phase of the kernel")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the report as JSON")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a bar chart as SVG")
    parser.add_argument("--scaling", metavar="FILE", type=Path, help="write tokens/s over GPUs, predicted and measured up to N, as SVG")
    add_backend(parser)
    add_dtype(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    from engine.bench.report import write_plot

    for path in (args.json, args.plot, args.scaling):
        check_writable(path)
    report = make_report(args)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.plot:
        write_plot(report, args.plot)
    if args.scaling:
        _write_scaling(args, report)


def make_report(args: argparse.Namespace) -> dict:
    """Everything measured in this process, one after the other on the same weights, and printed as it comes. Raises InvalidRequest."""
    from dataclasses import asdict

    from engine.bench.measure import measure
    from engine.bench.report import rival_text, text
    from engine.engine import EngineConfig
    from engine.worker import make_backend

    if args.prompt_tokens < 1 or args.output_tokens < 2 or args.runs < 1:
        raise InvalidRequest(
            "The benchmark needs at least 1 prompt token, 2 output tokens and 1 run; "
            f"got {args.prompt_tokens}, {args.output_tokens} and {args.runs}."
        )
    length = args.prompt_tokens + args.output_tokens
    config = EngineConfig(args.model, backend=args.backend, gpus=args.gpus, dtype=args.dtype, context_tokens=length)
    backend = make_backend(config, lambda progress: None)
    try:
        if length > backend.info.context_tokens:
            raise InvalidRequest(f"{length:,} tokens do not fit {args.model}, which takes {backend.info.context_tokens:,}.")
        speed = measure(backend, args.prompt_tokens, args.output_tokens, args.runs)
        gpus = backend.info.gpus if backend.info.backend == "monokernel" else 0
        if (args.compare and gpus != 1) or (args.profile and not gpus):
            raise InvalidRequest("--compare needs the monokernel on one GPU, --profile on one or more.")
        report = {"engine": asdict(backend.info), "speed": speed.to_dict(), **_surroundings(backend)}
        if backend.info.gpus > 1:
            report["exchange"] = _exchange(backend, args.output_tokens)
        report |= _bounds(backend.info, speed.decode_tokens_per_s)
        if args.profile:
            from engine.bench.profile import profile_decode

            report["profile"] = [phase.to_dict() for phase in profile_decode(backend, args.prompt_tokens)]
        print(text(report), flush=True)
        if args.compare:
            print("rival          compiling PyTorch's form, which takes minutes ...", flush=True)
            from engine.bench.rival import measure_rival

            report["rival"] = measure_rival(backend.config, backend.weights, args.prompt_tokens, args.output_tokens)
            print(rival_text(report), flush=True)
        return report
    finally:
        backend.close()


def _exchange(backend, output_tokens: int) -> dict:
    """Per token, of the last run: what a processor of GPU 0 waited for others (us, by kind), and the bytes it pushed to them."""
    waits = {f"{kind}_wait_us": value / output_tokens for kind, value in backend.waited_us().items()}
    return waits | {"pushed_bytes": backend.path.pushed_bytes, "layers": backend.config.n_layers}


def _write_scaling(args: argparse.Namespace, report: dict) -> None:
    from engine.bench.scaling import H200, MI300X, write_scaling_plot
    from engine.loading import load_config
    from engine.models import resolve

    info = report["engine"]
    machine = MI300X if "MI300X" in info["device"] else H200
    measured = {info["gpus"]: report["speed"]["decode_tokens_per_s"]} if machine.name in info["device"] else {}
    for count in (1, 2, 4, 8):
        if measured and count < info["gpus"]:
            fewer = argparse.Namespace(**vars(args) | {"gpus": count, "compare": False, "profile": False})
            measured[count] = make_report(fewer)["speed"]["decode_tokens_per_s"]
            print(f"scaling        {info['gpus']} GPUs are {measured[info['gpus']] / measured[count]:.2f} x {count}", flush=True)
    write_scaling_plot(load_config(resolve(args.model)), machine, measured, args.scaling)


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
    import torch

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
        "driver": _driver() if backend.info.gpus else None,
    }


def _driver() -> str | None:
    """The NVIDIA driver's version, from the file that its kernel module offers."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return None
    return next((word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()), None)
