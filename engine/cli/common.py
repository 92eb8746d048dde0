"""Arguments that several commands share."""

import argparse
import os
from pathlib import Path

from engine.errors import InvalidRequest

MODEL_HELP = "checkpoint folder, .gguf file, hub id, registry name, or random:NAME"


def parse_ids(text: str) -> list[int]:
    """'1,2,3' -> [1, 2, 3]. Raises InvalidRequest."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequest(f"Token ids are whole numbers with commas between them, such as 1,2,3; got {text!r}.") from None


def check_writable(path: Path | None) -> None:
    """Before the work whose result goes there. Raises InvalidRequest."""
    if path is None:
        return
    if path.is_dir():
        raise InvalidRequest(f"{path} is a folder; give the name of a file.")
    if not path.parent.is_dir():
        raise InvalidRequest(f"The folder {path.parent} does not exist.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidRequest(f"{path} cannot be written: permission denied, or a read-only file system.")


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)


def add_dtype(parser: argparse.ArgumentParser) -> None:
    choices = ("auto", "float32", "float16", "bfloat16")
    parser.add_argument("--dtype", choices=choices, default="auto", help="auto: float32 on the CPU, 16 bits on a GPU")


def add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", choices=("auto", "torch", "monokernel"), default="auto", help="auto: monokernel where there is a GPU")
