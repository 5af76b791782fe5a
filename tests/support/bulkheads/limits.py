"""Rate limits in tests: sets and shows them, and waits until a minute has begun."""

from __future__ import annotations

from typing import Any, Final

import requests
from django.db import connection
from rest_framework.test import APIClient

from accounts.models import LIMIT_NAMES, ApiKey, LimitOwner, RateLimit
from tests.support.inference.site import Site

# What the interface shows of a row without rate limits.
NO_LIMITS: Final = {**dict.fromkeys(LIMIT_NAMES), "models": {}}


def owner_of(site: Site, scope: str) -> LimitOwner:
    """Returns the tenant's owner of rate limits in a scope."""
    organization = site.tenant.organization.pk
    match scope:
        case "api_key":
            return LimitOwner(organization, api_key_id=ApiKey.objects.get(name="inference").pk)
        case "workspace":
            return LimitOwner(organization, workspace_id=site.tenant.workspace.pk)
        case "end_user":
            return LimitOwner(organization, end_user="customer-42")
        case _:
            return LimitOwner(organization)


def limit(site: Site, scope: str, **limits: Any) -> LimitOwner:
    """Sets rate limits of the tenant and returns their owner."""
    owner = owner_of(site, scope)
    RateLimit.objects.change(owner, limits)
    return owner


def patch_limits(management: APIClient, path: str, limits: Any, **others: Any) -> Any:
    """Changes the rate limits of the row at a path, and other fields of it."""
    return management.patch(path, {"rate_limits": limits, **others}, format="json")


def shown_limits(management: APIClient, path: str) -> Any:
    return management.get(path).json()["data"]["rate_limits"]


def is_early() -> bool:
    """Returns whether the minute of the database has 15 seconds left."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(second FROM clock_timestamp()) < 45")
        return bool(cursor.fetchone()[0])


def rate_of(answer: requests.Response) -> dict[str, str]:
    """Returns the rate-limit headers of an answer, without the common part of their names."""
    return {
        name.lower().removeprefix("x-ratelimit-"): value
        for name, value in answer.headers.items()
        if name.lower().startswith("x-ratelimit-")
    }
