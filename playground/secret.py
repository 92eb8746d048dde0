"""The signing key of an installation that sets none: made once, kept beside the database."""

import os
import secrets
from pathlib import Path


def secret_key(folder: Path) -> str:
    """Read ``folder/secret_key``, or make it (readable by its owner only). Safe when two processes start at once."""
    path = folder / "secret_key"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    key = secrets.token_urlsafe(48)
    with os.fdopen(descriptor, "w") as file:
        file.write(key)
    return key
