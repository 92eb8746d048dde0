"""What a link shows, taken once from the database. Later changes of the chat do not reach it.

    {"recorded_at": iso time, "model": {ModelCard fields of the run}, "turns": [turn, ...]}
    turn = {"prompt": text, "answer": {"text", "trace": [[characters, tokens, elapsed_ms], ...], "state", "finish_reason",
            "usage", "timings", "params"}}

The trace is the recorded stream: each entry is what arrived at once. System prompts, ids and names stay out.
"""

from playground import engine_client
from playground.chat.models import Conversation, Generation, Message
from playground.exceptions import InvalidParameter, NotFound

MAX_BYTES_TEXT = 2_000_000  # characters of all texts together
SHOWN_PARAMS = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed")


def snapshot_take(*, conversation: Conversation, answer: Message, whole: bool) -> dict:
    """The path from the first request to ``answer``, or ``answer`` and its request alone."""
    turns = _turns(_path(conversation, answer))
    turns = turns if whole else turns[-1:]
    size = sum(len(turn["prompt"]) + len(turn["answer"]["text"]) for turn in turns)
    if size > MAX_BYTES_TEXT:
        raise InvalidParameter(f"This chat has {size:,} characters; a link takes {MAX_BYTES_TEXT:,}. Share one answer instead.")
    generation = getattr(answer, "generation", None)
    return {
        "recorded_at": (generation.created_at if generation else answer.created_at).isoformat(),
        "model": _model(generation),
        "turns": turns,
    }


def answer_of(conversation: Conversation, message_id=None) -> Message:
    """The answer named, or the newest. Raises NotFound when it is not there, or nothing has been answered yet."""
    answers = conversation.messages.filter(role=Message.Role.ASSISTANT).select_related("generation").order_by("-created_at")
    if message_id:
        answers = answers.filter(pk=message_id)
    answer = answers.first()
    if answer is None:
        raise NotFound("There is no such answer in this chat.")
    generation = getattr(answer, "generation", None)
    if generation and not generation.ended:
        raise InvalidParameter("This answer is still being written. Share it when it has ended.")
    return answer


def _path(conversation: Conversation, answer: Message) -> list[Message]:
    messages = {m.pk: m for m in conversation.messages.select_related("generation")}
    path, at = [], messages[answer.pk]
    while at is not None:
        path.append(at)
        at = messages.get(at.parent_id)
    return path[::-1]


def _turns(path: list[Message]) -> list[dict]:
    """One for each answer. Imported chats may ask twice in a row, or not at all."""
    turns, asked = [], []
    for message in path:
        if message.role == Message.Role.USER:
            asked.append(message.content)
        else:
            turns.append({"prompt": "\n\n".join(asked), "answer": _answer(message, getattr(message, "generation", None))})
            asked = []
    return turns


def _answer(message: Message, generation: Generation | None) -> dict:
    if generation is None:  # an imported or forked answer: text without a recording
        return {"text": message.content, "trace": [], "state": "done", "finish_reason": "", "usage": None, "timings": None, "params": {}}
    return {
        "text": message.content,
        "trace": [entry[1:] for entry in generation.trace],
        "state": generation.state,
        "finish_reason": generation.finish_reason,
        **generation.stream_state,
        "params": {name: generation.params[name] for name in SHOWN_PARAMS if generation.params.get(name) is not None},
    }


def _model(generation: Generation | None) -> dict:
    """What ran, where: from the run itself; sizes and bounds from the model's card if the same device still reports."""
    if generation is None:
        return {}
    facts = {
        "name": generation.model,
        "title": generation.model,
        "backend": generation.backend,
        "device": generation.device,
        "gpus": generation.gpus,
        "precision": generation.precision,
    }
    card = next((c for c in engine_client.model_cards() if c.name == generation.model and c.device == generation.device), None)
    return {
        **facts,
        **(card.model_dump(exclude={"ready"}) if card else {}),
        **{k: v for k, v in facts.items() if k not in ("title",) and v},
    }
