"""The client suites over a real vLLM."""

from tests.clients.agents_suite import *  # noqa: F403
from tests.clients.openai_suite import *  # noqa: F403
from tests.clients.state_suite import *  # noqa: F403
