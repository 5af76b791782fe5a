"""Text completions: the same path as chat, with their own request and answer shapes."""

from __future__ import annotations

import json
from typing import Any

import requests

from tests.support.inference.prices import cost_details
from tests.support.inference.site import TEXT, Site, error_of, events_of

IDENTITY = {"model": "acme/falcon", "provider": "Acme AI", "system_fingerprint": "fp_simulated"}


def complete(site: Site, prompt: Any = "one two", **fields: Any) -> requests.Response:
    return site.post({"model": site.model.slug, "prompt": prompt, **fields}, path=TEXT)


def test_a_completion_has_every_field(site: Site) -> None:
    endpoint = site.publish()
    answer = complete(site)
    body = answer.json()
    assert answer.status_code == 200
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "id": answer.headers["X-Generation-Id"],
        "object": "text_completion",
        **IDENTITY,
        "choices": [
            {
                "index": 0,
                "text": "You said: one two",
                "logprobs": None,
                "finish_reason": "stop",
                "native_finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "total_tokens": 6,
            "cost": 0.00001,
            "is_byok": False,
            "cost_details": cost_details(0.00001, 0.000002, 0.000008),
        },
    }
    row = site.settled()
    assert (row.operation, row.streamed, row.status) == ("completions", False, "completed")
    assert (row.model_endpoint, row.cost_nano) == (endpoint, 10_000)


def test_a_streamed_completion_has_every_field(site: Site) -> None:
    site.publish()
    answer = complete(site, stream=True)
    *chunks, usage, done = events_of(answer.text)
    identity = {
        "id": answer.headers["X-Generation-Id"],
        "object": "text_completion",
        "created": usage["created"],
        **IDENTITY,
    }
    assert [chunk["choices"] for chunk in chunks] == [
        *([{"index": 0, "text": t, "finish_reason": None}] for t in ("You", " said:", " one")),
        [{"index": 0, "text": " two", "finish_reason": None}],
        [{"index": 0, "text": "", "finish_reason": "stop", "native_finish_reason": "stop"}],
    ]
    assert all({**chunk, "choices": []} == {**identity, "choices": []} for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 6
    assert usage["usage"]["cost"] == 0.00001
    assert done == "[DONE]"
    row = site.settled()
    assert (row.operation, row.streamed, row.status) == ("completions", True, "completed")


def test_every_kind_of_prompt_is_sent_unchanged(site: Site) -> None:
    site.publish("sim-mirror")
    for prompt in ("one", ["one", "two"], [1, 2, 3], [[1, 2], [3]]):
        answer = complete(site, prompt, suffix="end", best_of=2, future={"x": 1}, user="ada")
        seen = json.loads(answer.json()["choices"][0]["text"])
        assert seen["path"] == "/v1/completions"
        assert seen["body"].pop("user") != "ada"
        assert seen["body"] == {
            "model": "sim-mirror",
            "prompt": prompt,
            "suffix": "end",
            "best_of": 2,
            "future": {"x": 1},
            "stream": False,
        }


def test_an_error_in_the_stream_has_the_shape_of_a_text_chunk(site: Site) -> None:
    site.publish("sim-reset-stream")
    *_, last = events_of(complete(site, stream=True).text)
    assert last["error"]["code"] == 502
    assert last["object"] == "text_completion"
    assert last["choices"] == [{"index": 0, "finish_reason": "error", "text": "", "logprobs": None}]


def test_a_wrong_prompt_is_refused(site: Site) -> None:
    site.publish()
    error = error_of(complete(site, {"not": "a prompt"}), 400)
    assert list(error["metadata"]["fields"]) == ["prompt"]
    site.assert_nothing_happened()
