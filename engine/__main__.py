"""python -m engine COMMAND: info, logits, export, generate, bench. Each command is a module of engine/cli."""

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec

from engine.errors import EngineError

COMMANDS = ("info", "generate", "logits", "bench", "export")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status. Errors of the engine and of the system (a full disk) are printed in one line."""
    parser = argparse.ArgumentParser(prog="python -m engine", description="Load models, generate text, measure speed.")
    subparsers = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        if find_spec(f"engine.cli.{command}"):
            module = import_module(f"engine.cli.{command}")
            module.add_parser(subparsers).set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    try:
        return args.run(args) or 0
    except (EngineError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
