"""Every body in the document has an example, which is answered when it is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import requests

from accounts.models import ApiKey
from catalog.operations import OPERATIONS
from config.local.bootstrap import PROJECT
from inference.faces.routes import ROUTES
from inference.models import Generation
from tests.support import factories
from tests.support.bodies.samples import make_wav
from tests.support.contract import document
from tests.support.factories import Tenant
from tests.support.governance import make_key, make_member, make_preset, make_workspace
from tests.support.inference.pictures import PNG
from tests.support.inference.site import Site

GOLDEN: Final = json.loads((PROJECT / "tests" / "contract" / "openapi.json").read_text())
MANAGED: Final = [
    operation
    # A top-up needs a chain: tests/billing/topups sends its body.
    for app in ("accounts", "catalog", "endpoints", "endusers", "inference")
    for operation in json.loads((PROJECT / app / "examples.json").read_text())
    # These are bodies of the data plane.
    if not operation.startswith(("POST /audio", "POST /images", "POST /presets"))
] + ["PATCH /keys/{hash}", "POST /keys/{hash}/rotate"]


def bodies() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in GOLDEN["paths"].items():
        for method, operation in operations.items():
            for content_type, body in operation.get("requestBody", {}).get("content", {}).items():
                yield f"{method.upper()} {path}", content_type, body


# A form's example names its files.
FILES: Final = {
    "speech.wav": ("speech.wav", make_wav(), "audio/wav"),
    "causeway.png": ("causeway.png", PNG, "image/png"),
}


def example_of(body: dict[str, Any]) -> Any:
    """Returns the example of a body, or the first of several."""
    return body.get("example") or next(iter(body["examples"].values()))["value"]


EXAMPLES: Final = {
    operation: example_of(body)
    for operation, content_type, body in bodies()
    if content_type == "application/json"
}


def test_every_body_has_an_example() -> None:
    without = [
        (operation, content_type)
        for operation, content_type, body in bodies()
        if not ("example" in body or body.get("examples"))
    ]
    assert without == []


class Caller:
    """An organization whose rows stand in the place of the identifiers of the examples."""

    def __init__(self, tenant: Tenant) -> None:
        self.client = factories.client(tenant.management_key)
        member = make_member(tenant.organization, email="bob@example.com")
        workspace = make_workspace(tenant.organization)
        self.places = {
            "0192f0c1-8f6e-4b1e-9f43-3a1d0e9b7a01": str(member.pk),
            "0192f0c1-8f6e-4b1e-9f43-3a1d0e9b7a02": str(tenant.workspace.pk),
            "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef": make_key(
                tenant
            ).digest,
            "gen-1795808527-0a45826b98e9541364a8": factories.make_generation(tenant).pk,
            "{hash}": ApiKey.objects.get(name="inference").digest,
            "{interval}": "monthly",
            "{workspace_ref}": workspace.slug,
            "/presets/{slug}": f"/presets/{make_preset(tenant.workspace).slug}",
        }

    def send(self, operation: str) -> Any:
        """Sends an example; a row of the path is made by the example of its collection first."""
        method, _, path = operation.partition(" ")
        body = json.dumps(EXAMPLES[operation])
        for place, found in self.places.items():
            path, body = path.replace(place, found), body.replace(place, found)
        if (found := re.match(r"(/[^{]+)/\{(\w+)\}(?:/\{(\w+)\})?", path)) is not None:
            made = self.send(f"POST {found[1]}").json()
            row = made.get("data", made)
            names = [name for name in found.groups()[1:] if name]
            values = row["slug"].split("/") if len(names) == 2 else [row[names[0]]]
            for name, value in zip(names, values, strict=True):
                path = path.replace(f"{{{name}}}", value)
        return self.client.generic(method, f"/api/v1{path}", body, content_type="application/json")


@pytest.mark.parametrize("operation", MANAGED)
def test_an_example_is_accepted(tenant: Tenant, operation: str) -> None:
    provider = factories.make_provider("acme")
    # An author of the catalogue is no slug of an organization with models of its own.
    slugs = () if "/private-models" in operation else ("acme/falcon-9", "causeway/echo")
    for slug in slugs:
        factories.make_endpoint(factories.make_model(slug), provider)
    caller = Caller(tenant)
    if operation.endswith("/validate"):
        caller.send("POST /byok")

    answer = caller.send(operation)

    assert answer.status_code in (200, 201, 202), answer.content
    assert Generation.objects.count() == 1


def list_calls() -> list[tuple[str, str, dict[str, Any]]]:
    """Returns paths, content types and examples of the bodies that call models."""
    return [
        (operation.removeprefix("POST "), content_type, example_of(body))
        for operation, content_type, body in bodies()
        # What the management routes get is sent above.
        if operation not in MANAGED and not operation.startswith("POST /credits")
    ]


def publish_models(site: Site) -> None:
    """Serves the models of the examples, each for what its routes ask of it."""
    outputs: dict[str, set[str]] = {}
    for path, _, example in list_calls():
        route = ROUTES.get(f"/api/v1{path}")
        if route is not None:
            found = outputs.setdefault(example["model"], set())
            found.update(OPERATIONS[route.operation].outputs)
    for slug, kinds in outputs.items():
        model = factories.make_model(
            slug, input_modalities=["text", "image", "audio"], output_modalities=[*kinds]
        )
        site.publish(model=model)


def test_each_example_of_a_call_is_answered(site: Site) -> None:
    publish_models(site)
    calls = list_calls()
    refused = {}
    for path, content_type, example in calls:
        is_preset = path.startswith("/presets")
        key = site.tenant.management_key if is_preset else site.tenant.api_key
        headers = {"Authorization": f"Bearer {key}"}
        address = f"{site.server}/api/v1{path.replace('{slug}', 'support')}"
        if content_type == "application/json":
            answer = requests.post(address, json=example, headers=headers, timeout=60)
        else:
            assert content_type == "multipart/form-data"
            parts = {
                name: [each] if isinstance(each, str) else each for name, each in example.items()
            }
            texts = {name: each for name, each in parts.items() if each[0] not in FILES}
            files = [(name, FILES[one]) for name in parts.keys() - texts for one in parts[name]]
            answer = requests.post(address, data=texts, files=files, headers=headers, timeout=60)
        if answer.status_code not in (200, 201):
            refused[path, content_type] = answer.text
        else:
            media_type = answer.headers["Content-Type"].partition(";")[0]
            document.check(
                "POST", urlsplit(address).path, answer.status_code, media_type, answer.content
            )

    assert refused == {}
    # Chats and texts, media by both kinds of bodies, and presets, which are checked and not sent.
    assert len(calls) == 16
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert set(Generation.objects.values_list("status", flat=True)) == {"completed"}
