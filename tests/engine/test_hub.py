"""Fetching a hub id, against a small server that answers as the hub does."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/golden/llama/qwen2_bias"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FETCH = """
import json, sys
import torch
from engine.errors import ModelError
from engine.loading import load_config, load_weights
from engine.models import resolve
steps = []
try:
    source = resolve(sys.argv[1])
    config = load_config(source)
    before = sorted(path.name for path in source.folder().iterdir())
    weights = load_weights(source, config, dtype=torch.float32, device="cpu", on_progress=steps.append)
    print(json.dumps({"files": before, "bytes": weights.nbytes, "parameters": config.parameters,
                      "download": [step.fraction for step in steps if step.stage == "download"]}))
except ModelError as error:
    print(json.dumps({"error": str(error), "code": error.code}))
"""


class Hub(BaseHTTPRequestHandler):
    """owner/tiny with the files of FOLDER, among them a program that must never be fetched; 404 for all else."""

    files = {path.name: path.read_bytes() for path in FOLDER.iterdir()} | {"modeling_tiny.py": b"raise SystemExit(9)"}

    def do_GET(self):
        if self.path.startswith("/api/models/owner/tiny/revision/") or self.path == "/api/models/owner/tiny":
            self._json({"id": "owner/tiny", "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]})
        elif self.path.startswith(f"/api/models/owner/tiny/tree/{COMMIT}"):
            self._json([{"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()} for n, d in self.files.items()])
        elif self.path.startswith("/owner/tiny/resolve/"):
            self._send(200, self.files[self.path.rpartition("/")[2]])
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def _json(self, value) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        own = {"Content-Length": str(len(body)), "ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
        for name, value in (own | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def fetch(endpoint: str, repo: str, home: Path) -> dict:
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    run = subprocess.run([sys.executable, "-c", FETCH, repo], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_hub_id_is_fetched_once_and_then_found_without_the_hub(hub, tmp_path):
    first = fetch(hub, "owner/tiny", tmp_path)
    assert "config.json" in first["files"] and "model.safetensors" not in first["files"]  # weights only when they are loaded
    assert "modeling_tiny.py" not in first["files"]
    assert first["bytes"] == 4 * first["parameters"]
    assert first["download"] == sorted(first["download"]) and first["download"][0] == 0.0 and first["download"][-1] == 1.0
    again = fetch("http://127.0.0.1:9", "owner/tiny", tmp_path)
    assert again["bytes"] == first["bytes"]


def test_unknown_and_unreachable(hub, tmp_path):
    unknown = fetch(hub, "owner/other", tmp_path)
    assert unknown == {"error": "The hub has no model owner/other, or it is not public.", "code": "unknown_model"}
    unreachable = fetch("http://127.0.0.1:9", "owner/other", tmp_path)
    assert "owner/other is no folder here, and the hub cannot be reached" in unreachable["error"]
