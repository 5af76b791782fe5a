"""Inputs and outputs that are stored: of every face, plain and streamed, and of failures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection

from inference.models import Generation, StoredText, TextKey
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.governance import make_key
from tests.support.inference.site import ASKED as FACES
from tests.support.inference.site import CHAT, MESSAGES, RESPONSES, TEXT, Site
from tests.support.texts.logged import (
    ask_content,
    log_texts,
    read_content,
    wait_until_stored,
)

EMBEDDINGS = "/api/v1/embeddings"
CANARY = "canary 5a1f between two words"
ASKED = FACES[CHAT]
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
}


def dump(table: str) -> bytes:
    """Returns all that a table has, as a backup would."""
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY (TABLE {table}) TO STDOUT (FORMAT BINARY)") as copy,
    ):
        return b"".join(bytes(block) for block in copy)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_stored(storing: Site, stream: bool) -> None:
    answer = storing.chat(stream=stream)
    assert read_content(storing, answer) == {
        "input": ASKED,
        "output": {"completion": "You said: one two", "reasoning": None},
        "error": None,
        "is_truncated": False,
    }
    row = StoredText.objects.get()
    generation = Generation.objects.get()
    assert (row.pk, row.organization_id) == (generation.pk, generation.organization_id)
    assert (row.workspace_id, row.api_key_id) == (generation.workspace_id, generation.api_key_id)
    assert (row.input_bytes, row.output_bytes) == (len(json.dumps(ASKED["messages"])), 17)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_stored(logged: Site, stream: bool) -> None:
    logged.publish("sim-reasoning")
    output = read_content(logged, logged.chat(stream=stream))["output"]
    assert output["completion"] == "You said: one two"
    assert output["reasoning"]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_tools_are_stored(logged: Site, stream: bool) -> None:
    logged.publish("sim-tools:2")
    output = read_content(logged, logged.chat(stream=stream, tools=[TOOL, TOOL]))["output"]
    assert [call["function"]["name"] for call in output["tool_calls"]] == ["look_up", "look_up"]
    assert all(call["id"] and json.loads(call["function"]["arguments"]) is not None
               for call in output["tool_calls"])  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_completion_is_stored(storing: Site, stream: bool) -> None:
    content = read_content(storing, storing.ask(TEXT, prompt="three four", stream=stream))
    assert content["input"] == {"prompt": "three four"}
    assert "three four" in content["output"]["completion"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_the_other_faces_are_stored_in_the_same_form(
    storing: Site, path: str, stream: bool
) -> None:
    content = read_content(storing, storing.ask(path, stream=stream))
    assert content["input"]["messages"][-1]["role"] == "user"
    assert "one two" in json.dumps(content["input"])
    assert content["output"]["completion"] == "You said: one two"


@pytest.mark.parametrize("given", ["one text", ["one text", "another"]])
def test_the_input_of_embeddings_is_stored_and_no_vector(storing: Site, given: Any) -> None:
    answer = storing.post({"model": storing.model.slug, "input": given}, path=EMBEDDINGS)
    content = read_content(storing, answer)
    assert content["input"] == ({"prompt": given} if given == "one text" else {"messages": given})
    assert content["output"] == {"completion": None, "reasoning": None}


def test_a_failure_is_stored_with_the_failures_before(logged: Site) -> None:
    logged.publish("sim-status:500", provider=logged.another_provider("first", name="First"))
    logged.publish("sim-status:503", provider=logged.another_provider("second", name="Second"))
    body = logged.chat_body(provider={"order": ["first", "second"]})
    answer = logged.post(body)
    assert answer.status_code == 503
    content = read_content(logged, answer)
    error = content["error"]
    assert (error["status"], error["provider_name"], error["raw"]) == (503, "Second", None)
    assert [(each["code"], each["provider_name"]) for each in error["previous_errors"]] == [
        (502, "First")
    ]
    assert content["input"] == ASKED
    assert content["output"] == {"completion": None, "reasoning": None}


def test_a_stream_that_breaks_is_stored_as_far_as_it_was_delivered(logged: Site) -> None:
    logged.publish("sim-cut-event")
    content = read_content(logged, logged.chat("one two three four five", stream=True))
    assert content["error"]["status"] == 502
    assert content["output"]["completion"]
    assert "You said: one two three four five".startswith(content["output"]["completion"])


def test_nothing_can_be_read_in_a_dump(storing: Site) -> None:
    storing.chat(CANARY)
    wait_until_stored(storing)
    for table in ("inference_storedtext", "inference_textkey", "inference_textdeletion",
                  "inference_generation"):  # fmt: skip
        assert CANARY.encode() not in dump(table)
        assert b"canary" not in dump(table)


def test_each_organization_has_its_own_key(storing: Site, neighbour: Tenant) -> None:
    log_texts(neighbour)
    mine = storing.chat(CANARY)
    other = storing.post(storing.chat_body("other"), key=neighbour.api_key)
    wait_until_stored(storing, 2)
    assert {key.organization_id for key in TextKey.objects.all()} == {
        storing.tenant.organization.pk, neighbour.organization.pk,
    }  # fmt: skip
    first, second = (answer.headers["X-Generation-Id"] for answer in (mine, other))
    StoredText.objects.filter(pk=second).update(sealed=StoredText.objects.get(pk=first).sealed)
    assert ask_content(storing, second, key=neighbour.api_key).status_code == 404
    assert ask_content(storing, first, key=neighbour.api_key).status_code == 404


def test_a_workspace_that_did_not_ask_stores_nothing(published: Site) -> None:
    answer = published.chat(CANARY)
    published.settled()
    refused = ask_content(published, answer.headers["X-Generation-Id"])
    assert refused.status_code == 404
    assert refused.json()["error"]["metadata"]["error_type"] == "content_not_stored"
    assert not StoredText.objects.exists()
    assert not TextKey.objects.exists()


def test_only_listed_keys_are_logged(published: Site) -> None:
    key = make_key(published.tenant, "other")
    log_texts(published.tenant, io_logging_api_key_ids=[key.number])
    assert published.chat(CANARY).status_code == 200
    log_texts(published.tenant, io_logging_api_key_ids=None)
    read_content(published, published.chat("stored"))
    assert StoredText.objects.count() == 1


def test_switching_it_off_counts_from_the_next_request(storing: Site) -> None:
    read_content(storing, storing.chat("stored"))
    workspace = storing.tenant.workspace
    workspace.refresh_from_db()
    workspace.edit(is_observability_io_logging_enabled=False)
    off = storing.chat("not stored").headers["X-Generation-Id"]
    log_texts(storing.tenant)
    read_content(storing, storing.chat("stored too"))
    assert not StoredText.objects.filter(pk=off).exists()
    assert StoredText.objects.count() == 2


# An event of a stream is at most 1 MiB long, so only the input of the streamed request is too long.
@pytest.mark.parametrize(("stream", "length"), [(False, 2_000_000), (True, 900_000)])
def test_a_long_side_is_shortened(logged: Site, stream: bool, length: int) -> None:
    logged.publish(f"sim-big:{length}")
    text = "word " * 300_000
    content = read_content(logged, logged.chat(text, stream=stream))
    [message] = content["input"]["messages"]
    assert content["is_truncated"] is True
    assert text.startswith(message["content"])
    row = StoredText.objects.get()
    kept = min(length, 1_048_576)
    assert (row.input_bytes, row.output_bytes) == (1_048_576, kept)
    assert len(content["output"]["completion"]) == kept


def test_a_model_of_another_workspace_is_not_logged(storing: Site) -> None:
    other = factories.make_tenant()
    assert storing.post(storing.chat_body(CANARY), key=other.api_key).status_code == 200
    read_content(storing, storing.chat("stored"))
    assert StoredText.objects.count() == 1
