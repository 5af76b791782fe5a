"""Workspaces that log inputs and outputs, and what is stored of them."""

from __future__ import annotations

from typing import Any

import requests

from accounts.models import Workspace
from inference.models import Generation, StoredText
from tests.support.factories import Tenant
from tests.support.inference.site import Site

CONTENT = "/api/v1/generation/content"


def log_texts(tenant: Tenant, **changes: Any) -> None:
    workspace = Workspace.objects.get(pk=tenant.workspace.pk)
    workspace.edit(is_observability_io_logging_enabled=True, **changes)


def wait_until_stored(site: Site, count: int = 1) -> None:
    """Waits until ``count`` generations have a text; texts of earlier tests have no generation."""
    texts = StoredText.objects.filter(pk__in=Generation.objects.values("pk"))
    site.eventually(lambda: texts.all().count() == count)


def ask_content(
    site: Site, generation_id: str, *, key: str | None = None, method: str = "GET"
) -> requests.Response:
    """Asks for the content of a generation, or for its deletion."""
    headers = {"Authorization": f"Bearer {key or site.tenant.api_key}"}
    url = f"{site.server}{CONTENT}?id={generation_id}"
    return requests.request(method, url, headers=headers, timeout=60)


def read_content(site: Site, answer: requests.Response) -> Any:
    """Returns what is stored of an answered request."""
    found = ask_content(site, answer.headers["X-Generation-Id"])
    assert found.status_code == 200, found.text
    return found.json()["data"]
