"""Real clients against a live gateway; the suites run here over the scripted backend, in tests/live over a real vLLM.

A suite module holds the tests; the `test_` modules of both folders take them over by import, each folder's conftest
saying what stands behind the gateway.
"""

from __future__ import annotations

from typing import Any

# The choice bounds what a real model may say, so that its answers are short and complete; the gateway forwards the
# field as the backend's own extension.
SHORT: dict[str, Any] = {"structured_outputs": {"choice": ["Yes.", "No."]}}
LONG_PROMPT = "Count to 2000, one number after the other, and do not stop."
