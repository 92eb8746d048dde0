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
    parser.add_argument("--temperature", type=float, default=0.0, help="draw tokens; 0 (default) takes the best one")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="draw among the K best tokens (0: all)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw among the best tokens of this probability together")
    parser.add_argument("--compare", action="store_true", help="also measure PyTorch with torch.compile and CUDA graphs, on a GPU")
    parser.add_argument("--profile", action="store_true", help="time, wait and bytes of every phase of the kernel")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the report as JSON")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write speeds, and with --profile the phases, as SVG")
    parser.add_argument("--scaling", metavar="FILE", type=Path, help="write tokens/s over GPUs, predicted and measured up to N, as SVG")
    add_backend(parser)
    add_dtype(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    from engine.bench.benchmark import benchmark, compare, scale
    from engine.engine import EngineConfig
    from engine.request import SamplingParams

    files = [path for path in (args.json, args.plot, args.scaling) if path]
    for path in files:
        check_writable(path)
    if len({path.resolve() for path in files}) < len(files):
        raise InvalidRequest("--json, --plot and --scaling need a file each.")
    config = EngineConfig(args.model, backend=args.backend, gpus=args.gpus, dtype=args.dtype)
    sampling = SamplingParams(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p)
    report = benchmark(config, args.prompt_tokens, args.output_tokens, args.runs, sampling, profile=args.profile, with_rival=args.compare)
    _write(report, args.json, args.plot)
    if args.compare:
        for rival in compare(report):
            _write(report | {"rival": rival}, args.json, args.plot)
    if args.scaling:
        scale(config, report, args.scaling)


def _write(report: dict, json_file: Path | None, plot: Path | None) -> None:
    """As often as something is known: the rival's compiler takes minutes, and what was measured should outlive it."""
    from engine.bench.plot import write_plot

    if json_file:
        json_file.write_text(json.dumps(report, indent=1) + "\n")
    if plot:
        write_plot(report, plot)
