"""Hugging Face folders: one model.safetensors, or several named by an index. Only safetensors are read, never pickles."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.loading.assemble import COLUMN_PARTS, check_values
from engine.loading.hf_config import read_json
from engine.loading.hf_layout import IGNORED_SUFFIXES, all_parts, halves, per_lane, stored

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
STORED_TYPES = ("F32", "F16", "BF16")
HEAD = "lm_head.weight"
COMPARED_ROWS = 1024


class SafetensorsReader:
    """PartReader of a folder. Checks the names, shapes and types of all tensors when made; raises ModelError.

    A file is opened for each read and closed after it, so that its pages do not count as memory of the process.
    """

    def __init__(self, folder: Path, config: ModelConfig):
        self.config = config
        self.files: dict[str, Path] = {}  # by tensor name
        shapes: dict[str, tuple[int, ...]] = {}
        for path in _files(folder):
            for name, shape, kind in _header(path):
                if name in self.files:
                    raise ModelError(f"{path}: tensor {name} is stored twice, also in {self.files[name].name}.")
                if kind not in STORED_TYPES and not name.endswith(IGNORED_SUFFIXES):
                    raise ModelError(f"{path}: tensor {name} has type {kind}; {', '.join(STORED_TYPES)} are read.")
                self.files[name], shapes[name] = path, shape
        self._check(folder, shapes)

    def read(self, part: str, layer: int | None, start: int, stop: int, out: Tensor) -> None:
        name = stored(self.config, part, layer).name
        path = self.files[name]
        try:
            with safe_open(path, framework="pt") as file:
                rows = self._slice(file.get_slice(name), part, start, stop)
                rows = rows.reshape(out.shape)
                check_values(path, name, rows, out.dtype)
                if halves(self.config) and part in ("q", "k", "q_bias", "k_bias", "q_norm", "k_norm"):
                    copy_interleaved(out, rows, self.config.head_size)
                else:
                    out.copy_(rows)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: tensor {name} cannot be read: {error}") from error

    def _slice(self, tensor, part: str, start: int, stop: int) -> Tensor:
        if per_lane(self.config, part):
            size = self.config.n_lanes  # rows (columns) of a lane follow from the stored shape
            _, rows, columns = tensor.get_shape()
            size = columns if part in COLUMN_PARTS else rows
            lane, first = divmod(start, size)
            last = first + stop - start
            if part in COLUMN_PARTS:
                return tensor[lane : lane + 1, :, first:last]
            return tensor[lane : lane + 1, first:last]
        if part in COLUMN_PARTS:
            return tensor[:, start:stop]
        if part.endswith("norm") and len(tensor.get_shape()) == 1 and part not in ("q_norm", "k_norm"):
            return tensor[:]  # one scale for all lanes
        return tensor[start:stop]

    def _check(self, folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
        expected = {tensor.name: tensor.shape for tensor in (stored(self.config, *part) for part in all_parts(self.config))}
        missing = [name for name in expected if name not in shapes]
        if missing:
            raise ModelError(f"{folder}: {_some(missing)} missing; {missing[0]} should have shape {list(expected[missing[0]])}.")
        for name, shape in expected.items():
            if shapes[name] != shape:
                raise ModelError(f"{self.files[name]}: tensor {name} has shape {list(shapes[name])}; config.json asks for {list(shape)}.")
        unused = {HEAD} if self.config.tied_head else set()
        spare = [name for name in shapes if name not in expected and name not in unused and not name.endswith(IGNORED_SUFFIXES)]
        if spare:
            raise ModelError(
                f"{self.files[spare[0]]}: {_some(spare)} not part of this model; {spare[0]} has shape {list(shapes[spare[0]])}."
            )
        embedding = stored(self.config, "embedding", None).name
        if self.config.tied_head and HEAD in shapes and not (shapes[HEAD] == shapes[embedding] and self._equal(HEAD, embedding)):
            raise ModelError(
                f"{self.files[HEAD]}: tensor {HEAD} differs from {embedding}, but tie_word_embeddings says that they are one; set it "
                f"to false if {HEAD} is the head."
            )

    def _equal(self, one: str, other: str) -> bool:
        """Whether two matrices of the same shape hold the same values."""
        with safe_open(self.files[one], framework="pt") as a, safe_open(self.files[other], framework="pt") as b:
            ours, theirs = a.get_slice(one), b.get_slice(other)
            starts = range(0, ours.get_shape()[0], COMPARED_ROWS)
            return all(torch.equal(ours[i : i + COMPARED_ROWS].float(), theirs[i : i + COMPARED_ROWS].float()) for i in starts)


def copy_interleaved(out: Tensor, rows: Tensor, head_size: int) -> None:
    """Copy rows [heads * h, ..] whose rotary pairs are two halves of a head into interleaved order."""
    pairs = out.unflatten(0, (-1, head_size // 2, 2))
    pairs.copy_(rows.unflatten(0, (-1, 2, head_size // 2)).transpose(1, 2))


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        names = read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise ModelError(f"{folder / INDEX}: weight_map is missing or empty.")
        files = sorted(set(map(str, names.values())))
        for file in files:
            if Path(file).name != file:
                raise ModelError(f"{folder / INDEX}: {file!r} is no plain file name.")
            if not (folder / file).is_file():
                raise ModelError(f"{folder / file} is missing; {INDEX} names it.")
        return [folder / file for file in files]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise ModelError(f"{folder} has only pickled weights, which the engine does not open; convert them to safetensors.")
    raise ModelError(f"{folder}: neither {SINGLE} nor {INDEX} is there.")


def _header(path: Path) -> list[tuple[str, tuple[int, ...], str]]:
    """(name, shape, type) of every tensor; the library checks the header and the file's length."""
    try:
        path.open("rb").close()  # the library calls a file missing that it may not read
        with safe_open(path, framework="pt") as file:
            slices = [(name, file.get_slice(name)) for name in file.keys()]
            return [(name, tuple(tensor.get_shape()), tensor.get_dtype()) for name, tensor in slices]
    except PermissionError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is truncated or no safetensors file: {error}") from error


def _some(names: list[str]) -> str:
    """'tensor a is', 'tensors a, b, c and 4 more are'."""
    if len(names) == 1:
        return f"tensor {names[0]} is"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensors {', '.join(names[:3])}{more} are"
