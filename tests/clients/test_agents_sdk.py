"""The Agents SDK over the scripted backend."""

from tests.clients.agents_suite import *  # noqa: F403
