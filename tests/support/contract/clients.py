"""Makes clients of public SDKs: the types of the fixtures, and the authority they trust."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

import openai
from openrouter import OpenRouter

MakeOpenRouter = Callable[[str], OpenRouter]
MakeOpenAI = Callable[[str], openai.OpenAI]
Serve = Callable[..., str]

# The service of the tests has no TLS. A client that reads the authorities takes 20 ms more to make.
NO_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
