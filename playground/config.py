"""Every setting that a person can change, read once from the environment or from ``.env``. Listed in ``.env.example``."""

import sys
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

BASE_DIR = Path(__file__).resolve().parent.parent


class Config(BaseSettings):
    """Field names in capitals are the variable names. Lists are comma-separated."""

    model_config = SettingsConfigDict(env_file=BASE_DIR / ".env", env_ignore_empty=True, extra="ignore")

    # Web
    secret_key: str = Field("", description="Signs cookies. Empty: made once and kept in DATA_DIR.")
    debug: bool = Field(False, description="Django's debug pages. Never in production.")
    allowed_hosts: str = Field("", description="Host names served besides localhost, comma-separated.")
    cors_origins: str = Field(
        "*",
        pattern=r"^(\*|none|https?://[^,]+(,\s*https?://[^,]+)*)$",
        description="Sites whose pages may call /v1, comma-separated, with scheme; * is all, none is none.",
    )
    csrf_trusted_origins: str = Field("", description="Origins behind a proxy, comma-separated, with scheme.")
    behind_https: bool = Field(False, description="Set secure cookies and trust X-Forwarded-Proto of the proxy.")
    host: str = Field("127.0.0.1", description="Address that `make run` listens on.")
    port: int | None = Field(None, ge=0, le=65535, description="Port of `make run`. Empty: 8000 or the next free one.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="DEBUG, INFO, WARNING or ERROR.")

    metrics_token: str = Field("", description="Bearer token for /metrics. Empty: staff and this machine itself.")

    # E-mail
    email_host: str = Field("", description="SMTP server. Empty: messages are printed to the log.")
    email_port: int = Field(587, description="Port of the SMTP server.")
    email_tls: bool = Field(True, description="Use STARTTLS.")
    email_user: str = Field("", description="User name at the SMTP server.")
    email_password: str = Field("", description="Password at the SMTP server.")
    email_from: str = Field("playground@localhost", description="Sender of account messages.")

    # Storage
    data_dir: Path = Field(BASE_DIR / ".run", description="Database, logs and the embedded Redis server of the default mode.")
    database_url: str = Field("", pattern="^$|^(postgres|postgresql|sqlite)://", description="postgres://... Empty: SQLite in DATA_DIR.")
    redis_url: str = Field("", pattern="^$|^(redis|rediss|unix)://", description="redis://... Empty: `make run` starts an embedded server.")

    # Engine
    models: str = Field("smollm2-135m-instruct", description="Models served, comma-separated; the first is the default.")
    engine_pool: str = Field("", description="ENGINESxGPUS of a worker, as 1x8 or 8x1, or cpu. Empty: what the machine has.")
    engine_backend: str = Field("auto", description="auto, torch or monokernel.")
    engine_dtype: str = Field("auto", description="auto, float32, float16 or bfloat16.")
    context_tokens: int | None = Field(None, ge=1, description="Shorter context than the model's, in tokens.")

    # Limits
    max_message_bytes: int = Field(5_000_000, ge=1, description="Largest message over the socket and largest body over HTTP, in bytes.")
    max_queued: int = Field(200, ge=1, description="Generations waiting at most, over all users.")
    max_active_per_owner: int = Field(8, ge=1, description="Generations queued or running at once for one user or visitor.")
    api_anonymous: bool = Field(False, description="Serve /v1 without a key too, with a visitor's quota for each address.")
    stream_ttl_seconds: int = Field(3600, ge=1, description="How long a finished stream can be resumed from Redis.")
    viewer_window_bytes: int = Field(262_144, ge=1, description="Unacknowledged bytes at most per viewer and generation.")

    @property
    def model_names(self) -> list[str]:
        return split(self.models)


def split(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _read() -> Config:
    try:
        return Config()
    except ValidationError as invalid:  # a setting that is no number, ...
        lines = (f"error: {'.'.join(map(str, e['loc'])).upper()}: {e['msg']}; got {e['input']!r}." for e in invalid.errors())
        sys.exit("\n".join(lines))


config = _read()
