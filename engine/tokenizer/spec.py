"""What every source of a tokenizer gives: a `tokenizers` pipeline and the facts around it."""

from dataclasses import dataclass, field

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Pipeline

BYTE_TOKENS = {f"<0x{byte:02X}>": byte for byte in range(256)}
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenizerSpec:
    """``special``: token text -> id of everything that is markup and never text typed by a user. What the pipeline calls special
    of it is never part of an answer's text; the rest, such as <think> and <tool_call>, is.

    ``named``: of NAMES those that the model has, with their texts, for its chat template.
    """

    pipeline: Pipeline
    special: dict[str, int]
    byte_level: bool  # GPT-2's byte alphabet; otherwise SentencePiece pieces with byte fallback
    strips_first_space: bool  # decoding drops the space that encoding put before the first word
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    adds_bos: bool = False
    chat_template: str | None = None
    named: dict[str, str] = field(default_factory=dict)


def sentencepiece_pipeline(pieces: list[str], scores: list[float], markup: set[int], add_prefix_space: bool, legacy: bool) -> Pipeline:
    """SentencePiece's BPE (Llama 2) as a `tokenizers` pipeline.

    A pair merges when its concatenation is a piece; higher scores merge first. ``markup``: ids of control, unknown and byte
    pieces, which no merge makes. ``legacy`` (the original behaviour, and the default of checkpoints) puts a space before every
    stretch of text between markup, otherwise only the first one gets it.
    """
    vocab = {piece: i for i, piece in enumerate(pieces)}
    text_pieces = {piece: i for piece, i in vocab.items() if i not in markup}
    merges = []
    for piece, i in text_pieces.items():
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        pairs = [pair for pair in splits if pair[0] in text_pieces and pair[1] in text_pieces]
        merges += [(-scores[i], i, text_pieces[left], text_pieces[right], left, right) for left, right in pairs]
    unknown = next((piece for piece in ("<unk>", "<UNK>") if piece in vocab), None)
    model = models.BPE(vocab, [(m[4], m[5]) for m in sorted(merges)], unk_token=unknown, fuse_unk=True, byte_fallback=True)
    pipeline = Pipeline(model)
    if legacy:
        prefix = [normalizers.Prepend("▁")] if add_prefix_space else []
        pipeline.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    else:
        scheme = "first" if add_prefix_space else "never"
        pipeline.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    pipeline.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if add_prefix_space else steps)
    return pipeline


def add_markup(pipeline: Pipeline, tokens: list[str], *, special: bool = True) -> None:
    """Make ``tokens`` markup that is found before any normalisation. ``special``: never shown."""
    pipeline.add_tokens([AddedToken(token, special=special, normalized=False) for token in tokens])
