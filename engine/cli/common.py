"""Arguments that several commands share."""

import argparse

from engine.errors import InvalidRequest

MODEL_HELP = "checkpoint folder, .gguf file, hub id, registry name, or random:NAME"


def parse_ids(text: str) -> list[int]:
    """'1,2,3' -> [1, 2, 3]. Raises InvalidRequest."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequest(f"Token ids are whole numbers with commas between them, such as 1,2,3; got {text!r}.") from None


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)


def add_dtype(parser: argparse.ArgumentParser) -> None:
    choices = ("auto", "float32", "float16", "bfloat16")
    parser.add_argument("--dtype", choices=choices, default="auto", help="auto: float32 on the CPU, 16 bits on a GPU")


def add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", choices=("auto", "torch", "monokernel"), default="auto", help="auto: monokernel where there is a GPU")
