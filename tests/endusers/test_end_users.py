"""``/end-users`` and ``/external-users``: list, get, patch and delete the same registrations."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.bulkheads.limits import NO_LIMITS
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import named, refusal, stamp
from tests.support.inference.site import MESSAGES, RESPONSES, Site

ROUTES = ["/api/v1/end-users", "/api/v1/external-users"]
NOT_REGISTERED = refusal(404, "not_found", "This user is not registered.")

# Strings with characters that have a meaning in a path.
AWKWARD = [
    "customer-42", "two words", "a/b", "a//b", "/", "/leading", "trailing/", "%2F", "%252F", "%25",
    "%", "100%", "a%20b", "+", "a+b", ";", "a;b=c", "?", "a?b=c&d", "#", "a#b", "&", "=", ":", "@",
    "\\", "a\\b", "😀", "用户", "é", "e\u0301", "\u200b", "\u2028", "\ufffd", "'\"`<>{}|^", "...",
    ".a", "a.", "a/.", "a/..", "a/../b", "./a", "~", "null", "*", "$", "x" * 256, "😀" * 256,
]  # fmt: skip
SPACED = [" ", "  both  ", " leading", "trailing ", "\u00a0", "\u3000x"]
CONTROLS = ["a\nb", "a\tb", "a\r\nb", "a\x7fb", "a\x85b", "a\x01b"]


@pytest.fixture(params=ROUTES, ids=["end-users", "external-users"])
def route(request: pytest.FixtureRequest) -> str:
    """Returns one of the two routes to the same rows."""
    found: str = request.param
    return found


def register(tenant: Tenant, *users: str, is_active: bool = True) -> list[EndUser]:
    made = []
    for user in users:
        end_user = EndUser.objects.register(organization_id=tenant.organization.pk, user=user)
        if not is_active:
            end_user.deactivate()
        made.append(end_user)
    return made


def shown(end_user: EndUser) -> dict[str, Any]:
    end_user.refresh_from_db()
    return {
        "user": end_user.user,
        "is_active": end_user.is_active,
        "rate_limits": NO_LIMITS,
        "created_at": stamp(end_user.created_at),
        "updated_at": stamp(end_user.updated_at),
    }


def path_of(route: str, user: str) -> str:
    return f"{route}/{quote(user, safe='')}"


def patch(client: APIClient, path: str, body: Any) -> Any:
    return client.generic("PATCH", path, json.dumps(body), content_type="application/json")


def call(
    server: str, key: str, method: str, path: str, body: Any = None
) -> tuple[int, bytes, dict[str, str]]:
    """Sends the path unchanged; other clients would resolve its dots."""
    connection = http.client.HTTPConnection(urlsplit(server).netloc, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read(), dict(response.headers)
    finally:
        connection.close()


def test_the_list_shows_active_registrations_in_creation_order(
    management: APIClient, tenant: Tenant, route: str
) -> None:
    first, second = register(tenant, "b", "a")
    register(tenant, "gone", is_active=False)
    register(factories.make_tenant("Other"), "foreign")
    listed = management.get(route).json()
    assert listed == {"data": [shown(first), shown(second)], "total_count": 2}


def test_the_list_is_empty_without_registrations(management: APIClient, route: str) -> None:
    assert management.get(route).json() == {"data": [], "total_count": 0}


def test_the_list_filters(management: APIClient, tenant: Tenant, route: str) -> None:
    register(tenant, "a", "A", "ab", "a%", "á")
    register(tenant, "gone", is_active=False)
    register(factories.make_tenant("Other"), "a", "foreign")

    def listed(query: str) -> list[str]:
        answer = management.get(f"{route}?{query}").json()
        assert answer["total_count"] == len(answer["data"])
        return [row["user"] for row in answer["data"]]

    assert listed("user=a") == ["a"]
    assert listed("user=a%25") == ["a%"]
    assert listed("user=%25") == []
    assert listed("user=%C3%A1") == ["á"]
    assert listed("user=foreign") == []
    assert listed("user=") == []
    assert listed("user=gone") == []
    assert listed("user=gone&include_inactive=true") == ["gone"]
    assert listed("user=gone&include_inactive=false") == []
    assert listed("include_inactive=true") == ["a", "A", "ab", "a%", "á", "gone"]
    assert listed("include_inactive=false&unknown=1") == ["a", "A", "ab", "a%", "á"]
    assert listed(f"user={'x' * 600}") == []


@pytest.mark.parametrize("user", [*AWKWARD, *SPACED, ".", ".."])
def test_the_list_finds_every_string(management: APIClient, tenant: Tenant, user: str) -> None:
    [end_user] = register(tenant, user)
    register(tenant, "neighbour")
    for route in ROUTES:
        answer = management.get(f"{route}?user={quote(user, safe='')}")
        assert answer.json() == {"data": [shown(end_user)], "total_count": 1}


def test_the_list_keeps_those_that_are_active_or_those_that_are_not(
    management: APIClient, tenant: Tenant, route: str
) -> None:
    register(tenant, "here", "gone")
    EndUser.objects.get(user="gone").deactivate()

    def listed(query: str) -> list[str]:
        return sorted(row["user"] for row in management.get(f"{route}?{query}").json()["data"])

    assert listed("") == listed("include_inactive=false") == ["here"]
    assert listed("include_inactive=true") == ["gone", "here"]
    for rest in ("", "&include_inactive=false", "&include_inactive=true"):
        assert listed(f"is_active=true{rest}") == ["here"]
        assert listed(f"is_active=false{rest}") == ["gone"]
    assert listed("is_active=false&user=here") == []


def test_the_list_is_paged(management: APIClient, tenant: Tenant, route: str) -> None:
    start = timezone.now()
    EndUser.objects.bulk_create(
        EndUser(organization=tenant.organization, user=f"user-{number:03}") for number in range(101)
    )
    for number, end_user in enumerate(EndUser.objects.order_by("user")):
        created_at = start + timedelta(microseconds=number)
        EndUser.objects.filter(pk=end_user.pk).update(created_at=created_at)

    def page(query: str) -> list[int]:
        answer = management.get(f"{route}?{query}").json()
        assert answer["total_count"] == 101
        return [int(row["user"][5:]) for row in answer["data"]]

    assert page("") == list(range(50))
    assert page("limit=1") == [0]
    assert page("limit=99") == list(range(99))
    assert page("limit=100") == list(range(100))
    assert page("offset=100") == [100]
    assert page("offset=") == list(range(50))
    assert page("offset=99&limit=1") == [99]
    assert page("offset=101") == []
    assert page("offset=0&limit=50") == list(range(50))
    assert page("offset=999999999999999999") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *((f"limit={value}", "limit") for value in ("0", "101", "-1", "", "x", "1.0", "%D9%A3")),
        *((f"offset={value}", "offset") for value in ("-1", "x", "+1", "1" * 19)),
        *(
            (f"include_inactive={value}", "include_inactive")
            for value in ("", "1", "True", "yes", "null")
        ),
        *((f"is_active={value}", "is_active") for value in ("", "1", "False", "null")),
        *((f"user={value}", "user") for value in ("%00", "a%00b")),
        ("created_at=2026-01-01", "created_at"),
    ],
)
def test_the_list_refuses_a_malformed_query(
    management: APIClient, route: str, query: str, field: str
) -> None:
    assert named(management.get(f"{route}?{query}")) == (400, {field})


def test_only_external_users_filters_by_control_characters(
    management: APIClient, tenant: Tenant
) -> None:
    [end_user] = register(tenant, "a\nb")
    narrow, wide = (management.get(f"{route}?user=a%0Ab") for route in ROUTES)
    assert narrow.status_code == 400
    assert wide.json() == {"data": [shown(end_user)], "total_count": 1}


def test_the_list_makes_the_same_queries_for_1_row_and_for_50(
    management: APIClient, tenant: Tenant, route: str, django_assert_num_queries: Any
) -> None:
    register(tenant, "a")
    with django_assert_num_queries(4):
        management.get(route)
    register(tenant, *(f"user-{number}" for number in range(49)))
    with django_assert_num_queries(4):
        assert len(management.get(route).json()["data"]) == 50


@pytest.mark.parametrize("user", [*AWKWARD, *SPACED, *CONTROLS])
def test_every_string_can_be_addressed_by_a_path(
    management: APIClient, tenant: Tenant, user: str
) -> None:
    [end_user] = register(tenant, user)
    register(tenant, "neighbour")
    for route in ROUTES:
        path = path_of(route, user)
        assert management.get(path).json() == {"data": shown(end_user)}
        assert patch(management, path, {"is_active": False}).json()["data"]["is_active"] is False
        assert patch(management, path, {"is_active": True}).json() == {"data": shown(end_user)}
        deleted = management.delete(path)
        assert (deleted.status_code, deleted.content) == (204, b"")
        assert management.get(path).json()["data"]["is_active"] is False
    assert EndUser.objects.get(user="neighbour").is_active


def test_every_string_can_be_addressed_over_a_real_connection(server: str) -> None:
    tenant = factories.make_tenant()
    key = tenant.management_key
    users = [*AWKWARD, *SPACED, *CONTROLS, ".", ".."]
    register(tenant, *users)
    for user in users:
        for route in ROUTES:
            path = path_of(route, user)
            status, body, _ = call(server, key, "GET", path)
            assert (status, json.loads(body)["data"]["user"]) == (200, user)
        status, body, headers = call(server, key, "DELETE", path)
        assert (status, body, headers.get("Content-Type")) == (204, b"", None)
        inactive = EndUser.objects.filter(is_active=False).values_list("user", flat=True)
        assert list(inactive) == [user]
        status, body, _ = call(server, key, "PATCH", path, {"is_active": True})
        assert (status, json.loads(body)["data"]["user"]) == (200, user)
    assert EndUser.objects.filter(is_active=False).count() == 0


def test_a_slash_in_the_path_needs_no_escape(server: str) -> None:
    tenant = factories.make_tenant()
    register(tenant, "a/b", "a%2Fb")
    for path, user in (("a/b", "a/b"), ("a%2Fb", "a/b"), ("a%2fb", "a/b"), ("a%252Fb", "a%2Fb")):
        status, body, _ = call(server, tenant.management_key, "GET", f"{ROUTES[0]}/{path}")
        assert (status, json.loads(body)["data"]["user"]) == (200, user)


def test_octets_that_are_not_text_are_not_found(server: str) -> None:
    tenant = factories.make_tenant()
    register(tenant, "\ufffd", "a\ufffd", "a")
    with snapshots.unchanged():
        for octets in ("%FF", "a%FF", "%ED%A0%80", "%00", "a%00"):
            for method in ("GET", "DELETE"):
                path = f"{ROUTES[1]}/{octets}"
                status, body, _ = call(server, tenant.management_key, method, path)
                assert (path, status, json.loads(body)) == (path, 404, NOT_REGISTERED)


@pytest.mark.parametrize(
    "user", ["unknown", "A", "a ", " a", "a/", "x" * 513, "a\0b", "a\n", "0" * 5000]
)
def test_an_unregistered_string_is_not_found(
    management: APIClient, tenant: Tenant, route: str, user: str
) -> None:
    register(tenant, "a")
    register(factories.make_tenant("Other"), "unknown")
    with snapshots.unchanged():
        path = path_of(route, user)
        for response in (
            management.get(path),
            patch(management, path, {"is_active": False}),
            management.delete(path),
        ):
            assert (response.status_code, response.json()) == (404, NOT_REGISTERED)


def test_a_path_without_a_string_is_refused(
    management: APIClient, tenant: Tenant, route: str
) -> None:
    register(tenant, "a")
    with snapshots.unchanged():
        assert management.get(f"{route}/").status_code == 404
        assert management.delete(f"{route}/").status_code == 404
        assert management.delete(route).status_code == 405


def test_get_finds_an_inactive_registration(
    management: APIClient, tenant: Tenant, route: str
) -> None:
    [end_user] = register(tenant, "a", is_active=False)
    assert management.get(f"{route}/a").json() == {"data": shown(end_user)}
    assert shown(end_user)["is_active"] is False


def test_patch_changes_the_flag_and_updated_at_only_if_they_differ(
    management: APIClient, tenant: Tenant, route: str
) -> None:
    [end_user] = register(tenant, "a")
    created = shown(end_user)
    assert patch(management, f"{route}/a", {"is_active": True}).json() == {"data": created}
    inactive = patch(management, f"{route}/a", {"is_active": False}).json()["data"]
    assert inactive == shown(end_user)
    assert inactive["is_active"] is False
    assert inactive["created_at"] == created["created_at"]
    assert inactive["updated_at"] > created["updated_at"]
    assert patch(management, f"{route}/a", {"is_active": False}).json() == {"data": inactive}
    active = patch(management, f"{route}/a", {"is_active": True}).json()["data"]
    assert active["is_active"] is True
    assert active["updated_at"] > inactive["updated_at"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "is_active"),
        *(({"is_active": value}, "is_active") for value in (None, "true", "", 1, 0, 1.0, [], {})),
        ({"is_active": False, "user": "b"}, "user"),
        ({"is_active": False, "created_at": None}, "created_at"),
        ({"is_active": False, "id": 1}, "id"),
        ({"active": False}, "active"),
    ],
)
def test_patch_refuses_an_invalid_body(
    management: APIClient, tenant: Tenant, route: str, body: dict[str, Any], field: str
) -> None:
    register(tenant, "a")
    with snapshots.unchanged():
        response = patch(management, f"{route}/a", body)
    assert named(response) == (400, {field})


def test_delete_may_be_repeated_and_keeps_the_string_reserved(
    management: APIClient, tenant: Tenant, route: str
) -> None:
    [end_user] = register(tenant, "a")
    assert management.delete(f"{route}/a").status_code == 204
    deleted = shown(end_user)
    assert deleted["is_active"] is False
    with snapshots.unchanged():
        again = management.delete(f"{route}/a")
        assert (again.status_code, again.content) == (204, b"")
        assert "Content-Type" not in again.headers
        taken = management.post(route, {"user": "a"}, format="json")
    assert taken.status_code == 409


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_get_patch_and_delete_refuse_an_inference_key_and_a_missing_key(
    inference: APIClient, anonymous: APIClient, tenant: Tenant, route: str, method: str
) -> None:
    register(tenant, "a")
    body = '{"is_active": false}'
    with snapshots.unchanged():
        for client, status in ((inference, 403), (anonymous, 401)):
            response = client.generic(method, f"{route}/a", body, content_type="application/json")
            assert response.status_code == status


@pytest.mark.parametrize(
    "user", ["a", "x" * 256, "x" * 257, "x" * 512, "😀" * 512, "a\nb", "a\x01b", "a b", "."]
)
def test_external_users_accepts_longer_strings_and_control_characters(
    management: APIClient, user: str
) -> None:
    created = management.post(ROUTES[1], {"user": user}, format="json")
    assert created.status_code == 201
    assert created.json() == {"data": shown(EndUser.objects.get(user=user))}
    for route in ROUTES:
        assert management.get(path_of(route, user)).json() == created.json()
        assert management.get(route).json() == {"data": [created.json()["data"]], "total_count": 1}


@pytest.mark.parametrize(
    "user",
    [None, "", 5, True, [], {}, "x" * 513, "😀" * 513, "a\0b", "\0", "\ud800", " ", *SPACED, "a\n"],
)
def test_external_users_refuses_an_invalid_string(management: APIClient, user: Any) -> None:
    body = json.dumps({"user": user})
    with snapshots.unchanged():
        response = management.generic("POST", ROUTES[1], body, content_type="application/json")
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["metadata"]["error_type"] == "invalid_request"
    assert set(error["metadata"]["fields"]) == {"user"}


@pytest.mark.parametrize("user", ["x" * 257, "a\nb"])
def test_end_users_refuses_strings_that_only_external_users_accepts(
    management: APIClient, user: str
) -> None:
    with snapshots.unchanged():
        assert management.post(ROUTES[0], {"user": user}, format="json").status_code == 400
    assert management.post(ROUTES[1], {"user": user}, format="json").status_code == 201
    assert management.post(ROUTES[1], {"user": user}, format="json").status_code == 409
    # This route refuses the string although the other route has registered it.
    assert management.post(ROUTES[0], {"user": user}, format="json").status_code == 400


def test_both_routes_share_their_rows(management: APIClient) -> None:
    for here, there in (ROUTES, ROUTES[::-1]):
        user = str(uuid4())
        assert management.post(here, {"user": user}, format="json").status_code == 201
        assert management.post(there, {"user": user}, format="json").status_code == 409
        assert management.delete(f"{there}/{user}").status_code == 204
        assert management.get(f"{here}/{user}").json()["data"]["is_active"] is False


def test_transitions_return_whether_they_changed_the_row(tenant: Tenant) -> None:
    [end_user] = register(tenant, "a")
    changes = [end_user.activate(), end_user.deactivate(), end_user.deactivate()]
    assert changes == [False, True, False]
    stale = EndUser.objects.get()
    end_user.activate()
    assert stale.is_active is False
    assert stale.activate() is False
    assert stale.is_active is True


def test_an_organization_finds_only_its_own_registrations(
    management: APIClient, tenant: Tenant
) -> None:
    register(tenant, "a", is_active=False)
    foreign = factories.client(factories.make_tenant("Other").management_key)
    assert management.get("/api/v1/end-users/a").json()["data"]["is_active"] is False
    for client, user in ((foreign, "a"), (management, "A")):
        assert client.get(f"/api/v1/end-users/{user}").status_code == 404


def test_concurrent_deletes_all_succeed_and_change_the_row_once(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    [end_user] = register(tenant, "a")

    def delete() -> int:
        return call(server, tenant.management_key, "DELETE", f"{ROUTES[0]}/a")[0]

    assert Counter(together(*[delete] * 32)) == {204: 32}
    end_user.refresh_from_db()
    assert end_user.is_active is False


def test_concurrent_transitions_change_the_row_once(
    transactional_db: None, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    [end_user] = register(tenant, "a")
    rows = [EndUser.objects.get(pk=end_user.pk) for _ in range(32)]
    assert Counter(together(*[row.deactivate for row in rows])) == {True: 1, False: 31}
    stamp = EndUser.objects.get().updated_at
    assert {row.updated_at for row in rows} == {stamp}


def test_concurrent_patches_and_deletes_all_succeed(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    [end_user] = register(tenant, "a")

    def send(method: str, is_active: bool) -> Callable[[], tuple[int, Any]]:
        def run() -> tuple[int, Any]:
            body = {"is_active": is_active} if method == "PATCH" else None
            status, answer, _ = call(server, tenant.management_key, method, f"{ROUTES[0]}/a", body)
            return status, json.loads(answer)["data"]["is_active"] if answer else None

        return run

    kinds = [send("PATCH", True), send("PATCH", False), send("DELETE", False)]
    answers = together(*kinds * 11)
    assert Counter(answers) == {(200, True): 11, (200, False): 11, (204, None): 11}
    end_user.refresh_from_db()
    assert end_user.user == "a"


@pytest.mark.parametrize("user", [*CONTROLS, " leading"])
def test_what_is_registered_can_be_sent(site: Site, user: str) -> None:
    site.publish()
    management = APIClient(headers={"Authorization": f"Bearer {site.tenant.management_key}"})
    route = ROUTES[user in CONTROLS]
    limits = {"user": user, "rate_limits": {"requests_per_day": 4}}
    assert management.post(route, limits, format="json").status_code == 201
    answers = [
        site.chat(user=user),
        site.chat(safety_identifier=user),
        site.ask(MESSAGES, metadata={"user_id": user}),
        site.ask(RESPONSES, user=user),
        site.chat(user=user),
    ]
    assert [each.status_code for each in answers] == [200] * 4 + [429]
    told = [name for each in answers for name in (*each.headers, *each.headers.values())]
    assert user not in "".join(told)
    site.wait_for_settlement()
    assert set(Generation.objects.values_list("end_user", flat=True)) == {user}


def test_requests_of_an_inactive_user_are_served(site: Site) -> None:
    site.publish()
    register(site.tenant, "customer-1")
    served = [site.chat(user="customer-1")]
    register(site.tenant, "customer-2", is_active=False)
    EndUser.objects.get(user="customer-1").deactivate()
    served += [site.chat(user=user) for user in ("customer-1", "customer-2", "never registered")]
    assert [answer.status_code for answer in served] == [200] * 4
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert sorted(Generation.objects.values_list("end_user", "status")) == [
        ("customer-1", "completed"),
        ("customer-1", "completed"),
        ("customer-2", "completed"),
        ("never registered", "completed"),
    ]
