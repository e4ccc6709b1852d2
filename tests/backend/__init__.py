"""A backend that answers as vLLM 0.32 does, built from the recordings in tests/cassettes."""

from tests.backend import faults
from tests.backend.server import ScriptedVLLM
from tests.backend.wire import Exchange, Received, Script

__all__ = ["Exchange", "Received", "Script", "ScriptedVLLM", "faults"]
