"""python -m engine generate MODEL (--prompt TEXT | --chat TEXT | --ids 1,2,3): streams text, or prints one JSON object."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict

from engine.cli.common import add_backend, add_dtype, add_model, parse_ids
from engine.engine import Engine, EngineConfig
from engine.errors import EngineError, ModelError
from engine.request import Delta, Done, Failed, GenerationRequest, Progress, SamplingParams


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("generate", help="generate text from a prompt, a chat message or token ids")
    add_model(parser)
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="raw text, continued as it is")
    prompt.add_argument("--chat", help="a user's message, in the model's chat template")
    prompt.add_argument("--ids", help="token ids, such as 1,2,3")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="default: up to the end of the context")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (the default) is greedy")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="0 is off")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1 is off")
    parser.add_argument("--min-p", type=float, default=0.0, metavar="P", help="0 is off")
    parser.add_argument("--seed", type=int, metavar="S", help="the same seed gives the same tokens")
    parser.add_argument("--stop", action="append", default=[], metavar="STR", help="end before this text; may be repeated")
    parser.add_argument("--ignore-eos", action="store_true", help="go on after end-of-sequence tokens")
    add_backend(parser)
    parser.add_argument("--gpus", type=int, metavar="N", help="how many GPUs to use; 0 is the CPU")
    add_dtype(parser)
    parser.add_argument("--json", action="store_true", help="print one object instead of streaming text")
    return parser


def run(args: argparse.Namespace) -> int:
    request = _request(args)
    config = EngineConfig(args.model, backend=args.backend, gpus=args.gpus, dtype=args.dtype)
    with Engine(config, on_progress=_show) as engine:
        handle = engine.submit(request)
        show = _printer(engine) if not args.json else lambda event: None
        text, output_ids = "", []
        try:
            for event in handle:
                if isinstance(event, Delta):
                    text += event.text
                    output_ids += event.token_ids
                    show(event)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return 130
    if isinstance(event, Failed):
        error = EngineError(event.message)
        error.code = event.code
        raise error
    if args.json:
        print(json.dumps(_report(handle.prompt_ids, output_ids, text, event), ensure_ascii=False))
    else:
        print()
    return 0


def _printer(engine: Engine) -> Callable[[Delta], None]:
    """Prints text, or token ids where the model has no tokenizer."""
    try:
        engine.tokenizer()
    except ModelError as error:
        print(f"{error} Token ids are printed.", file=sys.stderr)
        return lambda event: print(*event.token_ids, end=" ", flush=True)
    return lambda event: print(event.text, end="", flush=True)


def _request(args: argparse.Namespace) -> GenerationRequest:
    sampling = SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        max_tokens=args.max_tokens,
        seed=args.seed,
        stop=tuple(args.stop),
        ignore_eos=args.ignore_eos,
    )
    messages = None if args.chat is None else [{"role": "user", "content": args.chat}]
    prompt_ids = None if args.ids is None else parse_ids(args.ids)
    return GenerationRequest("generate", sampling, messages=messages, prompt=args.prompt, prompt_ids=prompt_ids)


def _report(prompt_ids: list[int], output_ids: list[int], text: str, done: Done) -> dict:
    return {
        "prompt_ids": prompt_ids,
        "output_ids": output_ids,
        "text": text,
        "finish_reason": done.finish_reason,
        "usage": asdict(done.usage),
        "timings": asdict(done.timings),
    }


def _show(progress: Progress) -> None:
    end = "\n" if progress.fraction >= 1 else "\r"
    print(f"{progress.detail}: {progress.fraction:4.0%}", end=end, file=sys.stderr, flush=True)
