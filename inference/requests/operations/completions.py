"""What requests of chat and text completions share: parameters and output bounds."""

from __future__ import annotations

from typing import Final

# The vocabulary of ``supported_parameters``.
PARAMETERS: Final = frozenset(
    (
        "temperature", "top_p", "top_k", "min_p", "top_a", "frequency_penalty",
        "presence_penalty", "repetition_penalty", "max_tokens", "max_completion_tokens",
        "logit_bias", "logprobs", "top_logprobs", "prediction", "seed", "response_format",
        "structured_outputs", "stop", "tools", "tool_choice", "parallel_tool_calls",
        "include_reasoning", "reasoning", "reasoning_effort", "web_search_options", "verbosity",
    )
)  # fmt: skip
# Each pair names one parameter. It is sent under a name that the endpoint supports.
BOUNDS: Final = frozenset(("max_tokens", "max_completion_tokens"))
EFFORTS: Final = frozenset(("reasoning", "reasoning_effort"))
# What the form of an answer depends on: endpoints that list them come before others.
FORMS: Final = ("tools", "tool_choice", "response_format")
