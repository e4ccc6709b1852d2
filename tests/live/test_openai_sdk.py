"""The OpenAI Python SDK over a real vLLM."""

from tests.clients.openai_suite import *  # noqa: F403
from tests.clients.state_suite import *  # noqa: F403
