"""python -m engine COMMAND: info, logits, export, generate, bench. Each command is a module of engine/cli."""

import argparse
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec

from engine.errors import EngineError

COMMANDS = ("info", "generate", "logits", "bench", "export")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status. Errors of the engine and of the system (a full disk) are printed in one line.

    As shells have it, 130 after Ctrl-C, and 141 when the reader of the output has gone (``| head``), both without a word.
    """
    parser = argparse.ArgumentParser(prog="python -m engine", description="Load models, generate text, measure speed.")
    subparsers = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        if find_spec(f"engine.cli.{command}"):
            module = import_module(f"engine.cli.{command}")
            module.add_parser(subparsers).set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    try:
        status = args.run(args) or 0
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141
    except (EngineError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _exit(status: int) -> None:
    """End; what has been printed comes out if it can, and what could not be written is not tried again."""
    if status:
        with suppress(OSError):
            sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


if __name__ == "__main__":
    sys.stdout = sys.stdout or open(os.devnull, "w")  # started with standard output closed
    sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character is no reason to fail
    _exit(main())
