"""What requests of chat and text completions share: plugins, parameters and output bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from inference.requests.problems import field_error
from inference.requests.schemas import Plugin

# Plugins that are ignored: they only shorten or repair texts, or choose among models that this
# gateway does not offer. Any other plugin would change the answer, so it is refused.
_IDLE_PLUGINS: Final = frozenset(
    (
        "auto-beta-router", "auto-router", "context-compression", "file-parser", "jev-router",
        "pareto-router", "response-healing", "switchyard-router",
    )
)  # fmt: skip
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


def check_plugins(plugins: Iterable[Plugin]) -> None:
    """Raises :class:`InvalidRequest` for an enabled plugin that cannot be ignored."""
    for index, plugin in enumerate(plugins):
        if plugin.enabled is not False and plugin.id not in _IDLE_PLUGINS:
            raise field_error(f"plugins[{index}].id", "This service does not run the plugin.")
