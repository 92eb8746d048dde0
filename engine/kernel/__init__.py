"""The monokernel: one persistent Triton kernel for the whole decode loop. See engine/README.md."""
