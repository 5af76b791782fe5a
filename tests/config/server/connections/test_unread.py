"""Callers who do not read what Django answers."""

from __future__ import annotations

import pytest

from config.server.connections import cycle
from tests.support import factories
from tests.support.attack import connect, head_of
from tests.support.bulkheads.counters import read_counter
from tests.support.inference.site import Site

# More than the buffers of the kernel take.
LENGTH = 8_000_000


@pytest.mark.parametrize("is_known", [False, True], ids=["stranger", "known"])
def test_a_caller_who_reads_nothing_of_a_list_is_disconnected(
    site: Site, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    monkeypatch.setattr(cycle, "_STUCK_SECONDS", 0.5)
    site.publish(model=factories.make_model("acme/long", description="x" * LENGTH))
    login = {"Authorization": f"Bearer {site.tenant.api_key}"} if is_known else {}

    def count() -> float:
        name = "causeway_refused_connections_total"
        return read_counter(site.server, name, reason="stuck")

    before = count()
    with connect(site.server, buffer=4_096) as line:
        line.send(head_of("GET", "/api/v1/models?all=true", **login))
        answer = line.receive_head()
        assert (answer.status, int(answer.headers["content-length"]) > LENGTH) == (200, True)
        site.eventually(lambda: count() > before)
        # What the kernel had taken is cut off inside the text.
        assert line.receive_rest().endswith(b"x")
