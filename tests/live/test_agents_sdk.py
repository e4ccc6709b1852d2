"""The Agents SDK over a real vLLM."""

from tests.clients.agents_suite import *  # noqa: F403
