"""Workspaces that keep answers, and what their callers send and get."""

from __future__ import annotations

from typing import Any

import requests

from accounts.models import Workspace
from inference.models import KeptAnswer
from tests.support.factories import Tenant
from tests.support.inference.site import CHAT, Site

KEY = "order 17 / try 1"


def keep_answers(tenant: Tenant, **changes: Any) -> None:
    workspace = Workspace.objects.get(pk=tenant.workspace.pk)
    workspace.edit(is_answer_storage_enabled=True, **changes)


def send(
    site: Site,
    body: Any = None,
    *,
    key: str = KEY,
    by: str | None = None,
    path: str = CHAT,
    **options: Any,
) -> requests.Response:
    """Sends a request with an idempotency key, by an API key."""
    headers = {"Idempotency-Key": key, **options.pop("headers", {})}
    body = site.chat_body() if body is None else body
    return site.post(body, path=path, key=by, headers=headers, **options)


def is_replayed(answer: requests.Response) -> bool:
    return answer.headers.get("Idempotency-Replayed") == "true"


def cache_status(answer: requests.Response) -> str | None:
    return answer.headers.get("X-OpenRouter-Cache-Status")


def wait_until_kept(site: Site, count: int = 1) -> None:
    site.eventually(lambda: KeptAnswer.objects.count() == count)
