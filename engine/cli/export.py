"""python -m engine export MODEL --out FOLDER: write a checkpoint folder in the published layout."""

import argparse
from pathlib import Path

from engine.cli.common import add_dtype, add_model


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("export", help="write a checkpoint folder (config.json, safetensors), without a tokenizer")
    add_model(parser)
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="a new or empty folder")
    add_dtype(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    import torch

    from engine.loading import load_config, open_reader
    from engine.loading.export import export
    from engine.models import resolve

    source = resolve(args.model)
    config = load_config(source)
    name = config.dtype if args.dtype == "auto" else args.dtype
    size = export(config, open_reader(source, config), args.out, getattr(torch, name))
    print(f"{args.out}: {size:,} bytes of {name} tensors")
