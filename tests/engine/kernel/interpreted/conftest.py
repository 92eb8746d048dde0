"""These tests run in Triton's interpreter only; test_interpreted.py starts them so."""

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        for item in items:
            if "interpreted" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="runs in a process with TRITON_INTERPRET=1 (test_interpreted.py)"))
