"""Presets: a request takes over their fields, in every format, from its own workspace only."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from accounts.models import ApiKey
from catalog.dialects.base import Operation
from config.api.errors import InvalidRequest
from config.secrets import digest_api_key
from inference.requests import parsing
from inference.requests.operations import presets
from tests.support import factories
from tests.support.database import snapshots
from tests.support.governance import make_preset, make_workspace
from tests.support.inference.site import ASKED, CHAT, MESSAGES, RESPONSES, Site

WORDS = ASKED[CHAT]["messages"]


def merged(
    own: dict[str, Any], config: dict[str, Any], system: str | None = None
) -> dict[str, Any]:
    preset = presets.AppliedPreset(uuid4(), "active", json.dumps(config), system)
    found: dict[str, Any] = json.loads(
        presets.merge_preset(Operation.CHAT, json.dumps(own).encode(), preset)
    )
    return found


@pytest.mark.parametrize(
    ("own", "config", "expected"),
    [
        ({}, {"temperature": 0.5}, {"temperature": 0.5}),
        ({"temperature": 0}, {"temperature": 0.5}, {"temperature": 0}),
        ({"temperature": None}, {"temperature": 0.5}, {"temperature": 0.5}),
        ({"model": "a/b"}, {"model": "c/d", "models": ["e/f"]}, {"model": "a/b"}),
        ({"models": ["a/b"]}, {"model": "c/d"}, {"models": ["a/b"]}),
        ({"max_completion_tokens": 5}, {"max_tokens": 9}, {"max_completion_tokens": 5}),
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "high"}},
         {"reasoning_effort": "low"}),
        ({"tools": []}, {"tools": [{"type": "x"}], "tool_choice": "required"}, {"tools": []}),
        ({"provider": {"sort": "price"}}, {"provider": {"sort": "latency", "zdr": True}},
         {"provider": {"sort": "price", "zdr": True}}),
        ({"provider": "x"}, {"provider": {"zdr": True}}, {"provider": "x"}),
    ],
)  # fmt: skip
def test_the_fields_of_the_request_win(
    own: dict[str, Any], config: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert merged({"messages": WORDS, **own}, config) == {"messages": WORDS, **expected}


def test_the_system_prompt_goes_before_the_messages() -> None:
    own = [{"role": "system", "content": "own"}, *WORDS]
    assert merged({"messages": own}, {}, "of the preset")["messages"] == [
        {"role": "system", "content": "of the preset"}, *own,
    ]  # fmt: skip
    # The parser refuses these.
    assert merged({"messages": []}, {}, "x")["messages"] == []
    assert merged({}, {}, "x")["messages"] is None


def test_a_preset_with_a_system_prompt_is_for_chat() -> None:
    preset = presets.AppliedPreset(uuid4(), "active", "{}", "Be kind.")
    with pytest.raises(InvalidRequest, match="preset: Has a system prompt"):
        parsing.parse(Operation.TEXT, b'{"model": "a/b", "prompt": "x"}', preset=preset)


@pytest.mark.parametrize(
    ("fields", "slug", "rest"),
    [
        ({"model": "@preset/support"}, "support", {}),
        ({"model": "a/b@preset/support"}, "support", {"model": "a/b"}),
        ({"preset": "support"}, "support", {}),
        ({"preset": "@preset/support", "model": "a/b"}, "support", {"model": "a/b"}),
        ({"preset": "support", "model": "@preset/support"}, "support", {}),
    ],
)
def test_a_preset_is_named_in_three_ways(
    fields: dict[str, Any], slug: str, rest: dict[str, Any]
) -> None:
    named = presets.find_preset_name(json.dumps({"messages": WORDS, **fields}).encode())
    assert named is not None
    assert named.slug == slug
    found = {name: json.loads(bytes(raw)) for name, raw in named.fields.items()}
    assert found == {"messages": WORDS, **rest}


def test_the_slash_of_a_preset_may_be_escaped() -> None:
    named = presets.find_preset_name(b'{"model": "a\\/b@preset\\/support"}')
    assert named is not None
    assert (named.slug, bytes(named.fields["model"])) == ("support", b'"a/b"')


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"preset": None}, {"preset": ""}, {"preset": False}, {"preset": []},
        {"messages": [{"role": "user", "content": "@preset/support"}]},
        {"metadata": {"preset": "support"}},
    ],
)  # fmt: skip
def test_other_requests_name_none(fields: dict[str, Any]) -> None:
    assert presets.find_preset_name(json.dumps({"model": "a/b", **fields}).encode()) is None


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"preset": 5}, "preset"),
        ({"preset": {"slug": "x"}}, "preset"),
        ({"preset": "a", "model": "@preset/b"}, "preset"),
        ({"models": ["a/b", "@preset/b"]}, "models"),
    ],
)
def test_a_name_in_the_wrong_place_is_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        presets.find_preset_name(json.dumps(fields).encode())
    assert [*caught.value.metadata["fields"]] == [name]


def test_a_preset_named_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="names this key twice"):
        presets.find_preset_name(b'{"preset": "a", "preset": "b"}')


@pytest.mark.parametrize("operation", [Operation.EMBEDDINGS, Operation.RERANK, Operation.IMAGES])
def test_other_routes_take_no_preset(operation: Operation) -> None:
    with pytest.raises(InvalidRequest) as caught:
        body = {"model": "a/b", "input": "x", "query": "x", "documents": ["x"], "prompt": "x"}
        parsing.parse(operation, json.dumps({**body, "preset": "support"}).encode())
    assert [*caught.value.metadata["fields"]] == ["preset"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("way", ["model", "both", "field"])
def test_every_face_takes_a_preset_over(published: Site, path: str, way: str) -> None:
    preset = make_preset(
        published.tenant.workspace, model=published.model.slug, temperature=0.25, system="Be kind."
    )
    names: dict[str, Any] = {
        "model": {"model": "@preset/support"},
        "both": {"model": f"{published.model.slug}@preset/support"},
        "field": {"preset": "support"},
    }[way]
    answer = published.post({**ASKED[path], **names}, path=path)
    assert answer.status_code == 200, answer.text
    [request] = published.dialled()
    assert request.body["temperature"] == 0.25
    assert [message["role"] for message in request.body["messages"]] == ["system", "user"]
    assert request.body["messages"][0]["content"] == "Be kind."
    assert "preset" not in request.body
    row = published.settled()
    assert (row.preset_id, row.model) == (preset.pk, published.model.slug)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_face_that_shows_one_choice_asks_for_no_others(
    published: Site, path: str, number: int
) -> None:
    make_preset(published.tenant.workspace, model=published.model.slug, n=number)
    answer = published.post({**ASKED[path], "preset": "support"}, path=path)
    assert answer.status_code == 200, answer.text
    [request] = published.dialled()
    shown = number if path == CHAT else 1
    assert request.body.get("n", 1) == shown
    assert answer.headers.get("X-Left-Out") == (None if shown == number else "n")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_a_face_without_sound_asks_for_none(published: Site, path: str) -> None:
    spoken = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
    make_preset(published.tenant.workspace, model=published.model.slug, **spoken)
    answer = published.post({**ASKED[path], "preset": "support"}, path=path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Left-Out"] == "modalities, audio"
    [request] = published.dialled()
    assert request.body.keys().isdisjoint(spoken)


@pytest.mark.parametrize(
    ("modalities", "shown", "left_out"),
    [
        (["text", "image"], {"text", "image"}, ()),
        (["text", "image"], {"text"}, ("modalities",)),
        (["text"], {"text"}, ()),
        ([], {"text"}, ()),
        (None, {"text"}, ()),
    ],
)
def test_a_face_asks_for_what_it_shows(
    modalities: list[str] | None, shown: set[str], left_out: tuple[str, ...]
) -> None:
    config = json.dumps({"modalities": modalities, "n": 1})
    preset = presets.AppliedPreset(uuid4(), "active", config, None)
    found = presets.leave_out_unshown(preset, shown)
    assert found.left_out == left_out
    assert ("modalities" in json.loads(found.config or "")) is not bool(left_out)


@pytest.mark.django_db(transaction=True)
def test_a_change_applies_to_the_next_request(published: Site) -> None:
    workspace = published.tenant.workspace
    preset = make_preset(workspace, temperature=0.25)
    for step, expected in (
        (lambda: None, 0.25),
        (lambda: make_preset(workspace, temperature=0.5), 0.5),
        (lambda: preset.designate(1), 0.25),
        (lambda: preset.designate(2), 0.5),
    ):
        step()
        assert published.chat(preset="support").status_code == 200
        assert published.dialled()[-1].body["temperature"] == expected
    for move in (preset.disable, preset.archive):
        assert move() is True
        answer = published.chat(preset="support")
        assert answer.status_code == 400
        assert answer.json()["error"]["metadata"]["fields"] == {
            "preset": f"The preset 'support' is {preset.status}."
        }
    assert preset.activate() is True
    assert published.chat(preset="support").status_code == 200
    preset.remove()
    assert published.chat(model="@preset/support").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_a_preset_that_is_not_found_or_cannot_apply_is_refused(published: Site) -> None:
    # The presets of another workspace and of another tenant are not found.
    make_preset(make_workspace(published.tenant.organization), "elsewhere", temperature=1)
    make_preset(factories.make_tenant().workspace, "foreign", temperature=1)
    make_preset(published.tenant.workspace, temperature=0.25)
    with snapshots.unchanged():
        for fields, name in (
            ({"preset": "nobody"}, "preset"),
            ({"preset": "elsewhere"}, "preset"),
            ({"preset": "foreign"}, "preset"),
            ({"model": "@preset/nobody"}, "model"),
            ({"model": "@preset/"}, "model"),
            ({"preset": "x" * 65}, "preset"),
            ({"preset": "é"}, "preset"),
            ({"preset": "a\0b"}, "preset"),
        ):
            answer = published.chat(**fields)
            assert answer.status_code == 404, answer.text
            error = answer.json()["error"]["metadata"]
            assert (error["error_type"], [*error["fields"]]) == ("preset_not_found", [name])
        # A message that chat cannot express takes no preset.
        answer = published.ask(MESSAGES, preset="support", thinking={"type": "between_tools"})
        assert answer.status_code == 400
        assert "thinking" in answer.json()["error"]["message"]
    published.assert_nothing_happened()


@pytest.mark.django_db(transaction=True)
def test_a_key_that_moves_finds_the_presets_of_its_new_workspace(published: Site) -> None:
    other = make_workspace(published.tenant.organization)
    make_preset(published.tenant.workspace, temperature=0.25)
    make_preset(other, temperature=0.75)
    assert published.chat(preset="support").status_code == 200
    ApiKey.objects.filter(digest=digest_api_key(published.tenant.api_key)).update(workspace=other)
    assert published.chat(preset="support").status_code == 200
    assert [request.body["temperature"] for request in published.dialled()] == [0.25, 0.75]


@pytest.mark.django_db(transaction=True)
def test_the_merged_body_is_checked_held_and_priced(published: Site) -> None:
    make_preset(published.tenant.workspace, service_tier="priority")
    with snapshots.unchanged():
        answer = published.chat(preset="support")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("service_tier: ")
    published.assert_nothing_happened()
    make_preset(published.tenant.workspace, max_tokens=7)
    assert published.chat(preset="support").status_code == 200
    assert published.dialled()[-1].body["max_tokens"] == 7


@pytest.mark.django_db(transaction=True)
def test_a_large_body_takes_a_preset_over(published: Site) -> None:
    make_preset(published.tenant.workspace, temperature=0.25)
    assert published.chat("word " * 40_000, preset="support").status_code == 200
    assert published.dialled()[-1].body["temperature"] == 0.25
