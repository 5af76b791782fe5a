"""Types of the fixtures that make clients of public SDKs."""

from __future__ import annotations

from collections.abc import Callable

import openai
from openrouter import OpenRouter

MakeOpenRouter = Callable[[str], OpenRouter]
MakeOpenAI = Callable[[str], openai.OpenAI]
Serve = Callable[..., str]
