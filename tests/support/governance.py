"""Rows and requests for the tests of workspaces, guardrails and members."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import requests
from rest_framework.test import APIClient

from accounts.models import ApiKey, Guardrail, Member, Organization, Preset, Workspace
from tests.support.factories import Tenant

_numbers = itertools.count(1)


def make_member(organization: Organization, **fields: Any) -> Member:
    defaults = {"email": f"member-{next(_numbers)}@example.com"}
    return Member.objects.create(organization=organization, **{**defaults, **fields})


def make_workspace(organization: Organization, **fields: Any) -> Workspace:
    defaults = {"name": "More", "slug": f"more-{next(_numbers)}"}
    return Workspace.objects.create_workspace(
        organization_id=organization.pk, **{**defaults, **fields}
    )


def make_guardrail(workspace: Workspace, **fields: Any) -> Guardrail:
    return Guardrail.objects.create_guardrail(workspace=workspace, **{"name": "Strict", **fields})


def filter_secret(workspace: Workspace, action: str) -> None:
    """Lets the default guardrail of a workspace redact or block what says SECRET."""
    Guardrail.objects.edit_workspace_default(
        workspace, content_filters=[{"pattern": "SECRET", "action": action, "label": "[S]"}]
    )


def make_preset(
    workspace: Workspace, slug: str = "support", system: str | None = None, **config: Any
) -> Preset:
    """Stores a version of a preset with the fields ``config``, which applies at once."""
    preset: Preset = Preset.objects.store_version(
        workspace, slug, config=json.dumps(config), system_prompt=system, by="test"
    )
    return preset


def issue_key(tenant: Tenant, name: str = "key", **fields: Any) -> tuple[ApiKey, str]:
    """Creates a key, and returns it with its secret."""
    fields.setdefault("workspace", tenant.workspace)
    key, secret = ApiKey.objects.create_key(name=name, **fields)
    return key, secret.reveal()


def make_key(tenant: Tenant, name: str = "key", **fields: Any) -> ApiKey:
    return issue_key(tenant, name, **fields)[0]


def make_keys(tenant: Tenant, count: int) -> list[ApiKey]:
    """Makes keys that nobody can use, with their numbers as names."""
    owner = {"organization": tenant.organization, "workspace": tenant.workspace}
    return ApiKey.objects.bulk_create(
        ApiKey(**owner, name=str(number), digest=f"{number:064x}") for number in range(count)
    )


def send(client: APIClient, method: str, path: str, body: Any = None) -> Any:
    """Sends a body as text, so that a number arrives with the digits that it is written with."""
    text = body if isinstance(body, str) else json.dumps({} if body is None else body)
    return client.generic(method, f"/api/v1/{path}", text, content_type="application/json")


def ask_service(
    server: str, tenant: Tenant, method: str, path: str, body: Any = None
) -> requests.Response:
    """Sends a request with the tenant's management key over the network."""
    headers = {"Authorization": f"Bearer {tenant.management_key}"}
    url = f"{server}/api/v1/{path}"
    return requests.request(method, url, json=body, headers=headers, timeout=60)


def caller(
    server: str, tenant: Tenant, method: str, path: str, body: Any = None
) -> Callable[[], int]:
    """Returns a call that sends such a request and returns the status of the answer."""
    return lambda: ask_service(server, tenant, method, path, body).status_code


def usage_of(usd: float, *, byok: float = 0.0) -> dict[str, float]:
    """Returns what the interface shows of a key that has spent the same in each period."""
    kinds = {"usage": usd, "byok_usage": byok}
    ends = ("", "_daily", "_weekly", "_monthly")
    return {f"{kind}{end}": value for kind, value in kinds.items() for end in ends}


def stamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def refusal(code: int, error_type: str, message: str) -> dict[str, Any]:
    """Returns the body of an error that has no further facts."""
    return {"error": {"code": code, "message": message, "metadata": {"error_type": error_type}}}


def missing(what: str) -> dict[str, Any]:
    """Returns the error for an object that does not exist or belongs to another organization."""
    return refusal(404, "not_found", f"The {what} does not exist.")


def named(response: Any) -> tuple[int, set[str]]:
    """Returns the status of a refusal and the fields as its error names them."""
    return response.status_code, set(response.json()["error"]["metadata"]["fields"])


def told(response: Any) -> tuple[int, str]:
    """Returns the status of a refusal and its message."""
    return response.status_code, response.json()["error"]["message"]


def status_of(key: str) -> int:
    """Returns the status with which a key is accepted or refused."""
    client = APIClient(headers={"Authorization": f"Bearer {key}"})
    return int(client.get("/api/v1/key").status_code)


def refused(response: Any) -> tuple[int, set[str]]:
    """Returns the status of a refusal and the fields that its error names, each with a reason."""
    fields = response.json()["error"]["metadata"].get("fields", {})
    assert isinstance(fields, dict), fields
    return response.status_code, {name.partition(".")[0].partition("[")[0] for name in fields}
