"""The inference engine. Importing it loads neither torch nor triton: that happens in the engine's own process."""

from importlib import import_module

_HOMES = {
    "engine.engine": ("Engine", "EngineConfig", "Handle"),
    "engine.backend": ("EngineInfo",),
    "engine.request": (
        "Delta",
        "Done",
        "Event",
        "Failed",
        "GenerationRequest",
        "PrefillProgress",
        "PromptLogprobs",
        "Progress",
        "SamplingParams",
        "Started",
        "Timings",
        "TokenLogprob",
        "Usage",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str):
    if name not in _HOME_OF:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
