"""The OpenAI Python SDK over the scripted backend."""

from tests.clients.openai_suite import *  # noqa: F403
from tests.clients.state_suite import *  # noqa: F403
