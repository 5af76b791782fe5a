"""The functions that a warm chat runs, which the file beside this one lists.

``road.json`` may change within the ceilings; a rise needs a reason in its commit. To write it anew:
``CAUSEWAY_WRITE_ROAD=1 python3 manage.py test -n 0 tests/inference/test_road.py``.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from accounts.models import ApiKey
from inference.models import Generation
from inference.routing import health
from tests.support import factories
from tests.support.attack import connect, head_of
from tests.support.bulkheads.serving import serve_in_thread
from tests.support.inference.road import START, STOP, RecordedApplication, Road
from tests.support.inference.site import CHAT, Site

GOLDEN: Final = Path(__file__).with_name("road.json")
WARM: Final = 5
RECORDED: Final = 60
DEAR: Final = factories.make_price("0.001", "0.001")


class Ceilings(NamedTuple):
    """The most functions, files and calls of one request."""

    functions: int
    files: int
    calls: int


# Beside a busy machine packets come in more pieces, which adds up to 5 % of calls.
CEILINGS: Final = {"plain": Ceilings(300, 55, 462), "streamed": Ceilings(330, 60, 590)}


def record_road(site: Site, key: str, body: dict[str, Any]) -> Road:
    """Serves one worker, and sends it a chat again and again on one connection."""
    application = RecordedApplication()
    data = json.dumps(body).encode()
    chat = head_of("POST", CHAT, Authorization=f"Bearer {key}", Content_Length=len(data)) + data
    with serve_in_thread(application) as address, connect(address) as line:
        for number in range(WARM + RECORDED):
            if number == WARM:
                line.send(head_of("GET", START))
                assert line.receive_answer().status == 200
            line.send(chat)
            if body["stream"]:
                assert b"data: [DONE]" in line.receive_until(b"\r\n0\r\n\r\n")
            else:
                assert line.receive_answer().status == 200
            # It is settled after its answer.
            site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
        line.send(head_of("GET", STOP))
        assert line.receive_answer().status == 200
    assert Generation.objects.filter(status="completed").count() == WARM + RECORDED
    return application.read_road(RECORDED)


@pytest.mark.parametrize("kind", list(CEILINGS))
def test_a_warm_chat_runs_the_functions_of_the_golden_file(
    site: Site, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key has a limit, and the model two endpoints, of which the second costs far more."""
    # On a busy machine a request may take so long that the next one computes the health again.
    monkeypatch.setattr(health, "_REFRESH_SECONDS", math.inf)
    site.publish()
    site.publish(provider=site.another_provider("dear"), price=DEAR)
    _, key = ApiKey.objects.create_key(
        workspace=site.tenant.workspace, name="road", limit_nano=10**15
    )
    road = record_road(site, key.reveal(), site.chat_body(stream=kind == "streamed"))
    numbers = Ceilings(
        sum(len(names) for names in road.functions.values()), len(road.functions), road.calls
    )
    golden = json.loads(GOLDEN.read_text())
    if os.environ.get("CAUSEWAY_WRITE_ROAD"):
        golden[kind] = {
            **numbers._asdict(),
            "switches": road.switches,
            "rooms": road.count_by_room(),
            "names": road.functions,
        }
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
    assert road.functions == golden[kind]["names"]
    # Packets may come in more pieces, so the number of calls is no exact one.
    assert [has for has, most in zip(numbers, CEILINGS[kind], strict=True) if has > most] == []
