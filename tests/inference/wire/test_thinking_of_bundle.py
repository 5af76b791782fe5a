"""Each bundled endpoint that lists reasoning is told of it, refuses it, or is known to drop it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import catalog
from catalog import dialects
from catalog.abilities import read_abilities
from catalog.capabilities import Capabilities
from catalog.dialects.base import Call, Operation, Untranslatable
from config.credentials import Secret
from tests.support.upstreams import clouds

BUNDLE: Final = json.loads((Path(catalog.__file__).parent / "data/catalogue.json").read_text())
MODELS: Final = {each["canonical_slug"]: each for each in BUNDLE["models"]}
DIALECTS: Final = {each["slug"]: each["dialect"] for each in BUNDLE["providers"]}
SECRETS: Final = {
    "azure": json.dumps(clouds.azure()),
    "bedrock": json.dumps(clouds.bedrock_key()),
    "vertex": json.dumps(clouds.vertex()),
}
THINKING: Final = [
    each for each in BUNDLE["endpoints"]
    if not {"reasoning", "reasoning_effort"}.isdisjoint(each.get("supported_parameters", ()))
]  # fmt: skip
WISHES: Final[dict[str, dict[str, Any]]] = {
    "off": {"reasoning": {"enabled": False}},
    "none": {"reasoning_effort": "none"},
    "effort": {"reasoning": {"effort": "high"}},
    "OpenAI's effort": {"reasoning_effort": "low"},
    "tokens": {"reasoning": {"max_tokens": 2_000}},
}


def answer_of(endpoint: dict[str, Any], wish: dict[str, Any]) -> str:
    """Returns what becomes of a wish: it is sent, refused, named as left out, or lost."""
    name = DIALECTS[endpoint["provider"]]
    capabilities = msgspec.convert(MODELS[endpoint["model"]].get("capabilities", {}), Capabilities)
    abilities = read_abilities(endpoint.get("abilities") or {})
    listed = frozenset(endpoint["supported_parameters"])
    fields = {key: msgspec.Raw(json.dumps(value).encode()) for key, value in wish.items()}
    if not dialects.tells_thinking(name, capabilities, abilities, listed, fields):
        return "named"
    dialect = dialects.get(name, capabilities)
    assert dialect is not None

    def build(**more: Any) -> bytes:
        ask = {"messages": msgspec.Raw(b'[{"role":"user","content":"Hi"}]')}
        made = dialect.build(
            Call(
                Operation.CHAT, "https://host/v1", endpoint["upstream_model_id"],
                Secret(SECRETS.get(name, "key")), {**ask, **more},
                max_completion_tokens=endpoint.get("max_completion_tokens"),
                supported_parameters=listed, capabilities=capabilities, abilities=abilities,
            )
        )  # fmt: skip
        return bytes(made.body or b"")

    try:
        return "lost" if build(**fields) == build() else "sent"
    except Untranslatable:
        return "refused"


@pytest.mark.parametrize("wish", list(WISHES))
def test_no_wish_for_thinking_is_lost(wish: str) -> None:
    found = {
        (each["provider"], each["upstream_model_id"]): answer_of(each, WISHES[wish])
        for each in THINKING
    }
    assert [place for place, answer in found.items() if answer == "lost"] == []


def test_the_endpoints_whose_word_is_known_are_told() -> None:
    stated = [each for each in THINKING if "reasoning" in each.get("abilities", {})]
    switches = Counter(each["abilities"]["reasoning"]["switch"] for each in stated)
    assert switches == {"thinking.type": 4, "none": 21, "reasoning_effort": 3}
    assert {answer_of(each, WISHES["off"]) for each in stated} == {"sent", "refused"}
