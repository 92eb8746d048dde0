"""The portable path: one persistent kernel in plain Triton, for the interpreter, NVIDIA and AMD."""
