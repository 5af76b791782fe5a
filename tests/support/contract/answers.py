"""What every SDK reads of the simulated upstream's answers to ``one two three``."""

from __future__ import annotations

from typing import Any, Final

MESSAGES: Final[Any] = [{"role": "user", "content": "one two three"}]
ANSWER: Final = "You said: one two three"
WORDS: Final = ["You", " said:", " one", " two", " three"]
ARGUMENTS: Final = '{"city": "Z\\u00fcrich", "number": 0}'
COST: Final = {
    "cost": 0,
    "is_byok": True,
    "cost_details": {
        "upstream_inference_cost": 0.000013,
        "upstream_inference_prompt_cost": 0.000003,
        "upstream_inference_completions_cost": 0.00001,
    },
}
# A tool as Responses writes it.
WEATHER: Final[Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
