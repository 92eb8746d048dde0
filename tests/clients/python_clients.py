"""litellm and langchain-openai against a running server. How to run it: README.md beside it."""

import os
from collections.abc import Callable

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it asks the network for prices otherwise

import litellm  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402

MODEL = os.environ.get("MODEL", "smollm2-135m-instruct")
BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
MESSAGES = [{"role": "user", "content": "Name three colours."}]
LITE = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": KEY, "messages": MESSAGES, "max_tokens": 16, "seed": 3}


def check(name: str, run: Callable[[], object]) -> None:
    print(f"ok  {name}: {run()!r}")


def litellm_whole() -> str:
    answer = litellm.completion(**LITE)
    assert answer.usage.completion_tokens <= 16 and answer.choices[0].finish_reason in ("stop", "length")
    return answer.choices[0].message.content


def litellm_stream() -> str:
    chunks = list(litellm.completion(**LITE, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.prompt_tokens > 0
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def litellm_text() -> str:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", api_base=BASE, api_key=KEY, prompt="1, 2, 3,", max_tokens=6, temperature=0
    )
    return answer.choices[0].text


def litellm_error() -> str:
    try:
        litellm.completion(**LITE | {"model": "openai/gpt-9"}, num_retries=0)
    except litellm.NotFoundError as error:
        return type(error).__name__
    raise AssertionError("an unknown model was accepted")


def chain() -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=BASE, api_key=KEY, max_tokens=16, seed=3, stream_usage=True)


def langchain_invoke() -> str:
    answer = chain().invoke([("system", "Be brief."), ("human", "Name three colours.")])
    assert answer.usage_metadata["output_tokens"] <= 16
    return answer.content


def langchain_stream() -> str:
    pieces = list(chain().stream("Name three colours."))
    assert len(pieces) > 3 and any(piece.usage_metadata for piece in pieces)
    return "".join(piece.content for piece in pieces)


def langchain_logprobs() -> int:
    answer = chain().bind(logprobs=True, top_logprobs=2).invoke("Name three colours.")
    return len(answer.response_metadata["logprobs"]["content"])


if __name__ == "__main__":
    check("litellm completion", litellm_whole)
    check("litellm stream with usage", litellm_stream)
    check("litellm text_completion", litellm_text)
    check("litellm error class", litellm_error)
    check("langchain invoke", langchain_invoke)
    check("langchain stream with usage", langchain_stream)
    check("langchain logprobs", langchain_logprobs)
