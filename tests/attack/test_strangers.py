"""Strangers: what the service reads and does for a caller whom it does not know."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import ApiKey
from config import secrets
from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.attack import Answer, connect, head_of, post_of
from tests.support.bulkheads.counters import read_counter
from tests.support.factories import Tenant
from tests.support.inference.site import CHAT, TEXT, Site

HUGE = 20 * 1024 * 1024
# The first 64 KiB, one read of the event loop, and the buffers of the kernel on both sides.
TAKEN = 2 * 1024 * 1024
END = b"0\r\n\r\n"
INFERENCE = (
    CHAT, TEXT, "/api/v1/messages", "/api/v1/messages/count_tokens", "/api/v1/responses",
)  # fmt: skip
MANAGEMENT = ("/api/v1/end-users", "/api/v1/private-endpoints", "/api/v1/analytics/query")


def make_up(*, is_management: bool = False) -> str:
    """A key with a correct checksum that nobody has."""
    return secrets.generate_api_key(is_management=is_management).reveal()


def framed(body: bytes, is_chunked: bool) -> tuple[dict[str, str], bytes]:
    """Returns the header of a body's framing, and the body in it: whole, or one chunk."""
    if is_chunked:
        return {"Transfer_Encoding": "chunked"}, b"%x\r\n%b\r\n" % (len(body), body) + END
    return {"Content_Length": str(len(body))}, body


def pour(
    site: Site, path: str, *, is_chunked: bool, size: int = HUGE, **headers: str
) -> tuple[Answer, int]:
    """Sends a large body until the service answers; returns the answer and the bytes sent."""
    length, body = framed(b"x" * 65_536 if is_chunked else b"x" * size, is_chunked)
    if is_chunked:
        body = body.removesuffix(END) * (size // 65_536) + END
    headers = {"Content_Type": "application/json", **length, **headers}
    with connect(site.server, buffer=16_384) as line:
        line.send(head_of("POST", path, **headers))
        line.send_while_accepted(body)
        answer = line.receive_answer()
        # The rest of the body is never read.
        assert line.receive_rest() == b""
    return answer, line.sent


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("path", [*INFERENCE, *MANAGEMENT])
def test_a_made_up_key_is_refused_before_its_body_is_read(
    service: Site, is_served: Callable[[], bool], path: str, is_chunked: bool
) -> None:
    stranger = make_up(is_management=path in MANAGEMENT)
    answer, sent = pour(service, path, is_chunked=is_chunked, Authorization=f"Bearer {stranger}")
    assert answer.status == 401
    assert answer.headers["connection"] == "close"
    assert sent < TAKEN
    assert not Generation.objects.exists()
    assert not EndUser.objects.exists()
    assert is_served()


@pytest.mark.parametrize("path", [*INFERENCE, *MANAGEMENT])
def test_a_caller_without_a_key_is_refused_before_its_body_is_read(
    service: Site, path: str
) -> None:
    answer, sent = pour(service, path, is_chunked=False)
    assert (answer.status, answer.headers["connection"]) == (401, "close")
    assert sent < TAKEN


def waiting_head(key: str, length: int) -> bytes:
    """A head whose caller waits to be told to send the body."""
    login = f"Bearer {key}"
    return head_of("POST", CHAT, Authorization=login, Content_Length=length, Expect="100-continue")


def test_a_stranger_is_not_told_to_continue(service: Site) -> None:
    with connect(service.server) as line:
        line.send(waiting_head(make_up(), HUGE))
        assert line.receive_answer().status == 401


def test_a_caller_who_is_known_is_told_to_continue(service: Site) -> None:
    with connect(service.server) as line:
        line.send(waiting_head(service.tenant.api_key, 2))
        assert line.socket.recv(65_536).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        line.send(b"{}")
        assert line.receive_answer().status == 400


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"disabled": True}, "The API key is disabled."),
        ({"expires_at": timezone.now() - timedelta(days=1)}, "The API key has expired."),
    ],
)
def test_an_unusable_key_is_refused_before_its_body_is_read(
    service: Site, change: dict[str, object], message: str
) -> None:
    ApiKey.objects.filter(organization=service.tenant.organization).update(**change)
    key = service.tenant.api_key
    answer, sent = pour(service, CHAT, is_chunked=False, Authorization=f"Bearer {key}")
    assert (answer.status, answer.error["message"]) == (401, message)
    assert sent < TAKEN


def test_a_management_key_is_refused_for_inference_before_its_body_is_read(service: Site) -> None:
    key = service.tenant.management_key
    answer, sent = pour(service, CHAT, is_chunked=False, Authorization=f"Bearer {key}")
    assert (answer.status, answer.error["metadata"]["error_type"]) == (403, "permission_denied")
    assert sent < TAKEN


def test_a_revoked_key_is_known_for_no_longer_than_its_next_admission(service: Site) -> None:
    assert service.chat().status_code == 200
    ApiKey.objects.filter(organization=service.tenant.organization).update(disabled=True)
    # Both workers may know the key; each learns of the change with its first admission.
    assert {service.chat().status_code for _ in range(8)} == {401}
    assert Generation.objects.count() == 1


def test_each_request_of_a_connection_belongs_to_the_key_that_it_sends(service: Site) -> None:
    """A proxy sends the requests of many callers over one connection."""
    own, other = service.tenant, factories.make_tenant("Other")
    body = json.dumps(service.chat_body()).encode()
    statuses = []
    with connect(service.server) as line:
        for key in (own.api_key, own.api_key, other.api_key, make_up(), own.api_key):
            line.send(post_of(CHAT, key, body))
            statuses.append(line.receive_answer().status)
        line.send(head_of("POST", CHAT, Content_Length=len(body)) + body)
        statuses.append(line.receive_answer().status)
    assert statuses == [200, 200, 200, 401, 200, 401]
    counts = Counter(Generation.objects.values_list("organization", flat=True))
    assert counts == {own.organization.pk: 3, other.organization.pk: 1}


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("cookie", ["", "sessionid=3x6mz5n1w4o2c9y8t7e0q4v2b1k6u8ra"])
@pytest.mark.parametrize("path", ["/admin/login/", "/admin/accounts/organization/", "/docs"])
def test_only_a_signed_in_operator_sends_a_large_form(
    service: Site, is_served: Callable[[], bool], path: str, cookie: str, is_chunked: bool
) -> None:
    answer, sent = pour(
        service,
        path,
        is_chunked=is_chunked,
        Cookie=cookie,
        Content_Type="application/x-www-form-urlencoded",
    )
    assert answer.status == 413
    if path.startswith("/admin/"):
        assert b"This is too large" in answer.body
    else:
        assert answer.error["metadata"]["error_type"] == "payload_too_large"
    assert sent < TAKEN
    assert is_served()


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_signed_in_operator_sends_a_large_form(
    service: Site, operator: Client, is_chunked: bool
) -> None:
    cookie = f"sessionid={operator.cookies['sessionid'].value}"
    form = b"csrfmiddlewaretoken=none&filler=" + b"x" * 200_000
    length, body = framed(form, is_chunked)
    head = head_of(
        "POST",
        "/admin/accounts/organization/add/",
        Cookie=cookie,
        Content_Type="application/x-www-form-urlencoded",
        **length,
    )
    with connect(service.server) as line:
        line.send(head)
        line.send(body)
        # The form is read, and refused for its token.
        assert line.receive_answer().status == 403


def test_a_large_body_of_a_known_caller_is_served(service: Site) -> None:
    answer = service.chat("word " * 40_000)
    assert answer.status_code == 200, answer.text
    users = [f'{{"user": "customer-{number}"}}' for number in range(2)]
    for user, is_chunked in zip(users, [False, True], strict=True):
        length, body = framed(user.encode() + b" " * 200_000, is_chunked)
        login = {"Authorization": f"Bearer {service.tenant.management_key}"}
        kind = {"Content_Type": "application/json"}
        with connect(service.server) as line:
            line.send(head_of("POST", "/api/v1/end-users", **login, **kind, **length))
            line.send(body)
            assert line.receive_answer().status == 201
    assert EndUser.objects.count() == 2


def test_many_made_up_keys_displace_nobody_who_is_known(
    service: Site, neighbour: Tenant, is_served: Callable[[], bool]
) -> None:
    assert is_served()
    refused = read_counter(service.server, "causeway_refusals_total", status="401")
    with connect(service.server) as line:
        for _ in range(300):
            line.send(post_of(CHAT, make_up(), b"{}"))
            assert line.receive_answer().status == 401
    assert read_counter(service.server, "causeway_refusals_total", status="401") == refused + 300
    assert is_served()
    assert Generation.objects.filter(organization=neighbour.organization).count() == 2


def test_a_refused_key_whose_body_has_arrived_keeps_its_connection(service: Site) -> None:
    with connect(service.server) as line:
        for key, status in ((make_up(), 401), (service.tenant.api_key, 400)):
            line.send(post_of(CHAT, key, b"{}"))
            answer = line.receive_answer()
            assert (answer.status, "connection" in answer.headers) == (status, False)
