"""Long work that says nothing by itself: how long it has taken, every few seconds."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_S = 5.0


@contextmanager
def ticking(label: str, every_s: float = EVERY_S) -> Iterator[None]:
    """Print ``label`` and the seconds so far until the work is done; on a terminal in one line, which is cleared at the end."""
    start, done = time.monotonic(), threading.Event()
    begin, end = ("\r", "") if sys.stdout.isatty() else ("", "\n")

    def tell() -> None:
        while not done.wait(every_s):
            print(f"{begin}{label}, {time.monotonic() - start:.0f} s ...", end=end, flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
        if sys.stdout.isatty():
            print("\r\x1b[K", end="", flush=True)
