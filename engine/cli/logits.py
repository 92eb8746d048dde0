"""python -m engine logits MODEL --ids 1,2,3 --out FILE: logits of a prompt, for checks against other implementations."""

import argparse
from pathlib import Path

from engine.cli.common import add_backend, add_dtype, add_model, check_writable, parse_ids
from engine.errors import EngineError


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("logits", help="write logits [T, V] float32 of a prompt to a safetensors file")
    add_model(parser)
    parser.add_argument("--ids", required=True, help="token ids, such as 1,2,3")
    parser.add_argument("--out", required=True, type=Path, help="the safetensors file to write; its tensor is called logits")
    add_backend(parser)
    add_dtype(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    from safetensors.torch import save

    ids = parse_ids(args.ids)
    check_writable(args.out)
    logits = _logits(args, ids).float().cpu().contiguous()
    try:
        args.out.write_bytes(save({"logits": logits}))  # save_file would put a new file in the place of a link or a device
    except OSError as error:
        raise EngineError(f"{args.out} cannot be written: {error.strerror}.") from error
    print(f"{args.out}: logits {list(logits.shape)}, float32")


def _logits(args: argparse.Namespace, ids: list[int]):
    import torch

    from engine.loading import load_config, load_weights, pick_dtype
    from engine.models import resolve
    from engine.reference import forward

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.backend == "monokernel" or (args.backend == "auto" and device == "cuda"):
        return _monokernel_logits(args, ids)
    source = resolve(args.model)
    config = load_config(source)
    weights = load_weights(source, config, dtype=pick_dtype(args.dtype, config, device), device=device)
    return forward(config, weights, ids)


def _monokernel_logits(args: argparse.Namespace, ids: list[int]):
    from engine.kernel.backend import MonokernelBackend

    backend = MonokernelBackend(args.model, dtype=args.dtype, measure_bandwidth=False)
    try:
        return backend.logits(ids)
    finally:
        backend.close()
