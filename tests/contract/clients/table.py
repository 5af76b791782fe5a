"""The table of clients: which client speaks which face, and what the tests make it do."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

_CONTRACT: Final = Path(__file__).resolve().parents[1]
_PROJECT: Final = _CONTRACT.parents[1]
PAGE: Final = _PROJECT / "docs" / "clients.md"
LOCKS: Final = _CONTRACT / "clients" / "locks"
_NODE_LOCK: Final = _CONTRACT / "agents" / "package-lock.json"
COLUMNS: Final = ("plain", "stream", "tools", "structured", "error", "cancel")
_HEAD: Final = "| client | interfaces | exceptions for 404, 402 and 429 |\n|---|---|---|\n"
_EXPLANATION: Final = """\
Each asks plainly and in a stream, calls tools, gets structured output, meets these errors and
leaves a stream. The programs always stream and meet 404 alone; Cohere's SDK ranks.
"""


class Row(NamedTuple):
    """A client and a face that it speaks.

    ``driver`` in ``module`` makes the client do what the columns say. ``errors`` are the names of
    its exceptions for 404, 402 and 429.
    """

    id: str
    client: str
    face: str
    module: str
    driver: str
    errors: tuple[str, str, str]


def _rows_of(
    client: str, module: str, errors: tuple[str, str, str], *faces: str
) -> tuple[Row, ...]:
    name = client.lower().replace(" ", "-")
    return tuple(
        Row(f"{name}-{face.lower()}", client, face, module, face.capitalize(), errors)
        for face in faces
    )


_CHAT: Final = "chat"
_RESPONSES: Final = "Responses"
_MESSAGES: Final = "Messages"
ROWS: Final = (
    *_rows_of(
        "openai",
        "openai_sdk",
        ("NotFoundError", "APIStatusError", "RateLimitError"),
        *(_CHAT, _RESPONSES),
    ),
    *_rows_of(
        "openrouter",
        "openrouter_sdk",
        ("NotFoundResponseError", "PaymentRequiredResponseError", "TooManyRequestsResponseError"),
        *(_CHAT, _RESPONSES),
    ),
    *_rows_of(
        "anthropic",
        "anthropic_sdk",
        ("NotFoundError", "PaymentRequiredError", "RateLimitError"),
        _MESSAGES,
    ),
    *_rows_of(
        "pydantic-ai",
        "pydantic_ai_framework",
        ("ModelNotFoundError", "ModelQuotaExceededError", "ModelRateLimitError"),
        *(_CHAT, _RESPONSES),
    ),
    *_rows_of(
        "langchain-openai",
        "langchain_framework",
        ("OpenAIModelNotFoundError", "APIStatusError", "OpenAIRateLimitError"),
        *(_CHAT, _RESPONSES),
    ),
    *_rows_of(
        "litellm",
        "litellm_framework",
        ("NotFoundError", "APIError", "RateLimitError"),
        *(_CHAT, _RESPONSES),
    ),
    *_rows_of(
        "any-llm",
        "any_llm_framework",
        ("NotFoundError", "APIStatusError", "RateLimitError"),
        *(_CHAT, _RESPONSES),
    ),
    *_rows_of("AI SDK", "ai_sdk", ("AI_APICallError",) * 3, *(_CHAT, _RESPONSES)),
    *_rows_of("curl", "curl", ("", "", ""), *(_CHAT, _RESPONSES, _MESSAGES)),
)
# These have tests of their own: test_cohere_sdk.py, and tests/contract/agents for the programs.
OTHERS: Final = (("Cohere", "rerank"), ("Codex", _RESPONSES), ("Claude Code", _MESSAGES))


def render() -> str:
    """Returns the table of the page, with the versions of the lock files: one line a client."""
    versions = read_versions()
    faces: dict[str, list[str]] = {}
    for client, face in [(row.client, row.face) for row in ROWS] + list(OTHERS):
        faces.setdefault(client, []).append(face)
    errors = {row.client: row.errors for row in ROWS if any(row.errors)}
    table = "".join(
        f"| {versions[client]} | {', '.join(spoken)} | "
        f"{', '.join(f'`{name}`' for name in errors.get(client, ()))} |\n"
        for client, spoken in faces.items()
    )
    return f"{_HEAD}{table}\n{_EXPLANATION}"


def read_versions() -> dict[str, str]:
    """Returns the name of each client with the version that a lock file pins."""
    locked = tomllib.loads((_PROJECT / "uv.lock").read_text())["package"]
    development = "\n".join(f"{row['name']}=={row.get('version')}" for row in locked)
    frameworks = (LOCKS / "frameworks.lock").read_text()
    cohere = (LOCKS / "cohere.lock").read_text()
    following = (LOCKS / "openrouter-next.lock").read_text()
    packages = json.loads(_NODE_LOCK.read_text())["packages"]

    def version_of(name: str, lock: str) -> str:
        found = re.search(rf"^{re.escape(name)}==(\S+)", lock, re.MULTILINE)
        assert found is not None, name
        return found[1]

    def package(name: str) -> str:
        return str(packages[f"node_modules/{name}"]["version"])

    both = " and ".join(version_of("openrouter", lock) for lock in (development, following))
    return {
        "openai": f"`openai` {version_of('openai', development)}",
        "openrouter": f"`openrouter` {both}",
        "anthropic": f"`anthropic` {version_of('anthropic', development)}",
        "pydantic-ai": f"pydantic-ai {version_of('pydantic-ai-slim', frameworks)}",
        "langchain-openai": f"langchain-openai {version_of('langchain-openai', frameworks)}",
        "litellm": f"litellm {version_of('litellm', frameworks)}",
        "any-llm": f"any-llm {version_of('any-llm-sdk', frameworks)}",
        "AI SDK": f"AI SDK {package('ai')}, `@ai-sdk/openai` {package('@ai-sdk/openai')}",
        "curl": "curl",
        "Cohere": f"`cohere` {version_of('cohere', cohere)}",
        "Codex": f"Codex {package('@openai/codex')}, the program",
        "Claude Code": f"Claude Code {package('@anthropic-ai/claude-code')}, the program",
    }


def read_page() -> tuple[str, str, str]:
    """Returns the page before, in and after its tables of clients."""
    text = PAGE.read_text()
    start = text.index(_HEAD.splitlines()[0])
    end = text.index("\n## ", start)
    return text[:start], text[start:end], text[end:]


def update_page() -> None:
    """Writes the tables into the page."""
    before, _, after = read_page()
    PAGE.write_text(before + render() + after)
