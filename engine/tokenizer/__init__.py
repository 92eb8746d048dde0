"""Text <-> token ids, chat templates and streamed decoding. Imports no torch: web processes count prompt tokens with it."""

from engine.errors import EngineError, ModelError
from engine.models import ModelSource, resolve
from engine.shapes import SHAPES
from engine.tokenizer.detokenizer import Detokenizer
from engine.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "load_tokenizer"]


def load_tokenizer(model: str | ModelSource) -> Tokenizer:
    """The tokenizer that comes with a model: tokenizer.json, SentencePiece tokenizer.model, or GGUF metadata; a made-up one
    for random weights.

    Raises UnknownModel, or ModelError when the model has no tokenizer or one of an unknown kind.
    """
    from engine.tokenizer import folder, gguf, stand_in

    source = resolve(model) if isinstance(model, str) else model
    if source.kind == "random":
        return Tokenizer(stand_in.made_up(SHAPES[source.shape].vocab_size))
    path = source.path if source.kind == "gguf" else source.folder()
    try:
        return Tokenizer((gguf if source.kind == "gguf" else folder).read(path))
    except EngineError:
        raise
    except Exception as error:  # files of any content, and a library that raises bare Exception
        first_line = str(error).split("\n", 1)[0]
        raise ModelError(f"{path}: its tokenizer cannot be read: {type(error).__name__}: {first_line}") from error
