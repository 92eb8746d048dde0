"""Runs one program in a fresh `__main__` and returns its error as JSON, or None. The value of this file is the function."""

import builtins
import contextlib
import io
import json
import linecache
import os
import sys
import traceback
import types

ROOT = "/home/pyodide"
sys.path.insert(0, ROOT)
written = set()


def run(name, files, input_message):
    files = json.loads(files)
    path = f"{ROOT}/{name}"
    forget_last_run()
    for file in files:
        target = f"{ROOT}/{file['name']}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8") as out:
            out.write(file["code"])
        written.add(target)
        sys.modules.pop(os.path.splitext(file["name"])[0].replace("/", "."), None)
    code = next(file["code"] for file in files if file["name"] == name)
    linecache.clearcache()

    def no_input(prompt=""):
        raise EOFError(input_message)

    builtins.input = no_input
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.argv = [name]
    os.chdir(ROOT)
    try:
        exec(compile(code, path, "exec"), main.__dict__)
    except SystemExit as leave:
        if leave.code not in (None, 0):
            return failure(f"SystemExit: {leave.code}", None, f"SystemExit: {leave.code}")
    except BaseException as error:
        return explain(error, path, name)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the program may have closed or replaced it
                stream.flush()
        cancel_tasks()
    return None


def forget_last_run():
    """Files and modules of the chat, and streams that the program before may have closed or replaced."""
    for target in written:
        with contextlib.suppress(OSError):
            os.remove(target)
    written.clear()
    for module, value in list(sys.modules.items()):
        if (getattr(value, "__file__", None) or "").startswith(ROOT):
            del sys.modules[module]
    for number, stream in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(number, "w", closefd=False)
        setattr(sys, stream, io.TextIOWrapper(raw, encoding="utf-8", write_through=True))


def cancel_tasks():
    """A task that nobody waits for would go on into the next run."""
    if "asyncio" in sys.modules:
        import asyncio

        with contextlib.suppress(RuntimeError):
            for task in asyncio.all_tasks(asyncio.get_event_loop()):
                task.cancel()


def explain(error, path, name):
    lines = traceback.format_exception_only(error)
    message = lines[-1].strip().splitlines()[-1] if lines else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename == path:
        return failure(message, error.lineno, "".join(lines).replace(path, name))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != run.__code__.co_filename]
    own = [frame for frame in frames if frame.filename == path]
    first = next((i for i, frame in enumerate(frames) if frame.filename == path), 0)
    text = "Traceback (most recent call last):\n" + "".join(shorten(traceback.format_list(frames[first:])) + lines)
    return failure(message, own[-1].lineno if own else None, text.replace(path, name))


def shorten(entries):
    """A deep recursion says the same two hundred times: its first and last frames are enough."""
    return entries if len(entries) <= 20 else entries[:8] + [f"  ... {len(entries) - 16} more frames ...\n"] + entries[-8:]


def failure(message, line, details):
    return json.dumps({"message": message, "line": line, "details": details})


run  # noqa: B018 (the value of this file)
