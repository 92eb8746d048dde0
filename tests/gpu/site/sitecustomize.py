"""With SAME_TRITON set, every build of a Triton version takes another one's kernels from the cache: see ``tests/gpu/precompile.py``."""

import os

if "SAME_TRITON" in os.environ:
    import triton
    import triton.runtime.cache

    triton.runtime.cache.triton_key = lambda: triton.__version__
