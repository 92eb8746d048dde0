"""Runs one program in a fresh `__main__` and returns its error as JSON, or None. The value of this file is the function."""

import builtins
import json
import linecache
import os
import sys
import traceback
import types

ROOT = "/home/pyodide"
sys.path.insert(0, ROOT)


def run(name, files, input_message):
    files = json.loads(files)
    path = f"{ROOT}/{name}"
    for file in files:
        target = f"{ROOT}/{file['name']}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8") as out:
            out.write(file["code"])
        # Modules of the chat are imported anew in each run.
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
        sys.stdout.flush()
        sys.stderr.flush()
    return None


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
