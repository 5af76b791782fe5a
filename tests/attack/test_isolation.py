"""A stranger and a tenant at one service: what each may see of the other."""

from __future__ import annotations

from collections.abc import Callable

from config import secrets
from inference.models import Generation
from tests.support.attack import connect, head_of, read_counter
from tests.support.inference.site import Site


def test_a_stranger_is_refused_and_a_neighbour_is_served(
    service: Site, is_served: Callable[[], bool]
) -> None:
    stranger = secrets.generate_api_key(is_management=False).reveal()
    path = "/api/v1/chat/completions"
    refused = read_counter(service.server, "causeway_refusals_total", status="401")
    with connect(service.server) as line:
        line.send(head_of("POST", path, Authorization=f"Bearer {stranger}", Content_Length=2))
        line.send(b"{}")
        answer = line.receive_answer()
    assert answer.status == 401
    assert not Generation.objects.exists()
    assert read_counter(service.server, "causeway_refusals_total", status="401") > refused
    assert is_served()
