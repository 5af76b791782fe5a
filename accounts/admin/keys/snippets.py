"""Samples for a new key: each works as it stands once it is pasted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from accounts.models import ApiKey, policy_of
from catalog.lists.listing import Criteria, open_catalogue
from endpoints.models import PrivateEndpoint

NO_MODEL: Final = "author/model"
"""Stands for a model that the operator replaces, while the key can call none."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A sample of one client; ``place`` says where to put it."""

    client: str
    place: str
    text: str


_INFERENCE: Final[tuple[Snippet, ...]] = (
    Snippet(
        "curl",
        "a terminal",
        """\
curl {api}/chat/completions \\
  -H "Authorization: Bearer {key}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'""",
    ),
    Snippet(
        "OpenAI SDK",
        "Python",
        """\
from openai import OpenAI

client = OpenAI(base_url="{api}", api_key="{key}")
answer = client.chat.completions.create(
    model="{model}", messages=[{{"role": "user", "content": "Hello"}}]
)
print(answer.choices[0].message.content)""",
    ),
    Snippet(
        "OpenRouter SDK",
        "Python",
        """\
from openrouter import OpenRouter

with OpenRouter(api_key="{key}", server_url="{api}") as client:
    answer = client.chat.send(
        model="{model}", messages=[{{"role": "user", "content": "Hello"}}]
    )
    print(answer.choices[0].message.content)""",
    ),
    Snippet(
        "Anthropic SDK",
        "Python",
        """\
from anthropic import Anthropic

client = Anthropic(base_url="{root}", api_key="{key}")
answer = client.messages.create(
    model="{model}", max_tokens=1024, messages=[{{"role": "user", "content": "Hello"}}]
)
print(answer.content[0].text)""",
    ),
    Snippet(
        "Claude Code",
        "a terminal, before you start claude in it",
        """\
export ANTHROPIC_BASE_URL={root}
export ANTHROPIC_AUTH_TOKEN={key}
export ANTHROPIC_MODEL={model}""",
    ),
    Snippet(
        "Codex",
        "~/.codex/config.toml; set CAUSEWAY_KEY to the key where you start codex",
        """\
model = "{model}"
model_provider = "causeway"

[model_providers.causeway]
name = "Causeway"
base_url = "{api}"
env_key = "CAUSEWAY_KEY"
wire_api = "responses\"""",
    ),
)
_MANAGEMENT: Final[tuple[Snippet, ...]] = (
    Snippet("curl", "a terminal", 'curl {api}/keys -H "Authorization: Bearer {key}"'),
    Snippet(
        "OpenRouter SDK",
        "Python",
        """\
from openrouter import OpenRouter

with OpenRouter(api_key="{key}", server_url="{api}") as client:
    for endpoint in client.private_endpoints.list().data:
        print(endpoint.status, endpoint.model_slug)""",
    ),
)


def write_snippets(key: ApiKey, secret: str, *, origin: str) -> list[Snippet]:
    """Returns the samples for a key; ``origin`` is the scheme and host that its callers use."""
    if key.is_management:
        samples, model = _MANAGEMENT, NO_MODEL
    else:
        samples, model = _INFERENCE, find_example(key)
    root = f"{origin}/api"
    values = {"root": root, "api": f"{root}/v1", "key": secret, "model": model}
    return [Snippet(one.client, one.place, one.text.format(**values)) for one in samples]


def find_example(key: ApiKey) -> str:
    """Returns a model of text that the key can call: that of the newest private endpoint, if any.

    Otherwise it is the newest. It is an example and no promise, because a budget may be spent.
    """
    found = open_catalogue(policy_of(key), key=key).select(Criteria(outputs=frozenset(("text",))))
    slugs = [listed.model.slug for listed in found]
    own = (
        PrivateEndpoint.objects.for_organization(key.organization_id)
        .filter(status=PrivateEndpoint.Status.ACTIVE)
        .order_by("-created_at")
        .values_list("model__slug", flat=True)
    )
    return next((slug for slug in (*own, *slugs) if slug in slugs), NO_MODEL)
