"""The gateway's own fields over real sockets: they are stored and shown, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.models import Generation
from tests.support.database import snapshots
from tests.support.inference.site import CHAT, RESPONSES, Site

pytestmark = pytest.mark.django_db(transaction=True)


def shown_by(site: Site, row: Generation) -> Any:
    return site.get(f"/api/v1/generation?id={row.pk}").json()["data"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_trace_is_stored_with_the_generation(published: Site, path: str) -> None:
    trace = {"trace_id": "t-1", "nul": "\0", "deep": [{"é": 1}]}
    answer = published.ask(path, trace=trace, session_id="talk-1")
    assert answer.status_code == 200, answer.text
    row = published.settled()
    assert (json.loads(row.trace), row.session_id) == (trace, "talk-1")
    found = shown_by(published, row)
    assert (found["trace"], found["session_id"]) == (trace, "talk-1")


def test_a_generation_without_a_trace_shows_none(published: Site) -> None:
    assert published.chat(trace={}).status_code == 200
    row = published.settled()
    assert row.trace is None
    assert "trace" not in shown_by(published, row)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"transforms": ["of-another-gateway"]}, "transforms"),
        ({"transforms": ["middle-out", "of-another-gateway"]}, "transforms"),
        ({"transforms": "middle-out"}, "transforms"),
        ({"debug": {"echo_upstream_body": True}}, "debug.echo_upstream_body"),
        ({"stop_server_tools_when": [{"type": "max_cost"}]}, "stop_server_tools_when"),
        ({"trace": {"a": "x" * 8_192}}, "trace"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"model": "acme/falcon:online"}, "model"),
    ],
)
def test_what_this_service_does_not_do_is_refused_by_name(
    published: Site, fields: dict[str, Any], name: str
) -> None:
    with snapshots.unchanged():
        answer = published.chat(**fields)
    assert answer.status_code == 400
    assert [*answer.json()["error"]["metadata"]["fields"]] == [name]
    published.assert_nothing_happened()
