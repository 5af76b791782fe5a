#!/usr/bin/env bash
# A date, a Literal, an Enum: what four frameworks tell the model to send
#
# Software: agno 3.1.10, semantic-kernel 1.45.0, smolagents 1.26.0, langchain-core 1.8.3 (PyPI)
# Guess:    Type hints of a tool become the JSON schema that pydantic has for them.
# Seen:     Only langchain-core's do. agno describes a date as an object that must be empty,
#           Semantic Kernel a date and a Literal["c", "f"] as objects, smolagents a date and an Enum
#           as objects. By these schemas "c" or "2026-11-28" is invalid, and {} is valid.
# Matters:  A server that keeps to the schema of a tool forces the model to write {} where the
#           function wants a text; without that, models guess.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    agno==3.1.10 semantic-kernel==1.45.0 smolagents==1.26.0 langchain-core==1.8.3 \
    jsonschema==4.26.0 openai==3.57.0
# smolagents reads the source of a tool, so the program is a file.
cat >"$folder/check.py" <<'PYTHON'
import datetime
import enum
from typing import Any, Literal

from agno.tools.function import Function
from jsonschema import Draft202012Validator
from langchain_core.utils.function_calling import convert_to_openai_tool
from semantic_kernel.connectors.ai.function_calling_utils import (
    kernel_function_metadata_to_function_call_format as describe,
)
from semantic_kernel.functions import KernelFunctionFromMethod, kernel_function
from smolagents import tool
from smolagents.models import get_tool_json_schema


class Color(enum.Enum):
    RED = "red"


def book(day: datetime.date, unit: Literal["c", "f"], color: Color) -> str:
    """Books.

    Args:
        day: The day.
        unit: The unit.
        color: The color.
    """
    return "done"


method = KernelFunctionFromMethod(kernel_function(book), plugin_name="p")
made: dict[str, Any] = {
    "agno": Function.from_callable(book).to_dict(),
    "semantic-kernel": describe(method.metadata)["function"],
    "smolagents": get_tool_json_schema(tool(book))["function"],
    "langchain-core": convert_to_openai_tool(book)["function"],
}
good = {"day": "2026-11-28", "unit": "c", "color": "red"}
refused, empty = {}, {}
for name, function in made.items():
    schemas = function["parameters"]["properties"]
    print(name, {each: {key: schema[key] for key in schema if key not in ("description", "title")}
                 for each, schema in schemas.items()})
    checks = {each: Draft202012Validator(schemas[each]) for each in good}
    refused[name] = [each for each, check in checks.items() if not check.is_valid(good[each])]
    empty[name] = [each for each, check in checks.items() if check.is_valid({})]
assert refused == empty == {
    "agno": ["day"], "semantic-kernel": ["day", "unit"], "smolagents": ["day", "color"],
    "langchain-core": [],
}, (refused, empty)
assert schemas["day"] == {"description": "The day.", "type": "string", "format": "date"}
PYTHON
"$folder/venv/bin/python" "$folder/check.py"
