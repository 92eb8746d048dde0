"""From a ModelSource to a ModelConfig and canonical weights. Importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.config import ModelConfig
from engine.errors import InvalidRequest, ModelError
from engine.models import ModelSource, OnProgress
from engine.shapes import SHAPES

if TYPE_CHECKING:
    import torch

    from engine.weights import ModelWeights, Shard

DTYPES = ("float32", "float16", "bfloat16")


def load_config(source: ModelSource) -> ModelConfig:
    """The checked description of a model. Raises ModelError. Reads no weights; a hub id is fetched without weights."""
    if source.kind == "random":
        return SHAPES[source.shape]
    if source.kind == "gguf":
        from engine.loading.gguf_config import read_config

        return read_config(source.path, source.name)
    from engine.loading.hf_config import read_config

    return read_config(source.folder(), source.name)


def load_weights(
    source: ModelSource,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    shard: Shard | None = None,
    on_progress: OnProgress | None = None,
) -> ModelWeights:
    """The canonical weights of one rank (default: the whole model) in ``dtype`` on ``device``.

    Streams tensor by tensor and reads only this rank's part; the host holds the weights and one chunk at most.
    Raises ModelError (what the files lack or have wrong) and DeviceError (no room on the device).
    """
    from engine.loading.assemble import assemble
    from engine.weights import Shard

    return assemble(config, open_reader(source, config, on_progress), dtype, device, shard or Shard(), on_progress)


def open_reader(source: ModelSource, config: ModelConfig, on_progress: OnProgress | None = None):
    """The PartReader of a source, with names and shapes of all tensors checked."""
    if source.kind == "random":
        from engine.loading.random import RandomReader

        return RandomReader(config)
    if source.kind == "gguf":
        from engine.loading.gguf import GgufReader

        return GgufReader(source.path, config)
    if source.kind in ("folder", "hub"):
        from engine.loading.safetensors import SafetensorsReader

        return SafetensorsReader(source.folder(weights=True, on_progress=on_progress), config)
    raise ModelError(f"{source.name}: unknown kind of source {source.kind!r}.")


def pick_dtype(name: str, config: ModelConfig, device: torch.device | str) -> torch.dtype:
    """``auto``: float32 on the CPU; on a GPU the stored type when it has 16 bits, else float16."""
    import torch

    if name == "auto":
        name = "float32" if torch.device(device).type == "cpu" else config.dtype if config.dtype != "float32" else "float16"
    if name not in DTYPES:
        raise InvalidRequest(f"dtype must be auto, {', '.join(DTYPES)}; got {name!r}.")
    return getattr(torch, name)
