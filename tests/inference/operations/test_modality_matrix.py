"""Every listed model on every route: served, or refused with a reason before anything is sent."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from django.core.management import call_command

from catalog import dialects
from catalog.dialects.base import Operation
from catalog.models import LanguageModel, ModelEndpoint, Provider
from catalog.operations import OPERATIONS
from config.credentials import Secret
from config.local.bootstrap import PROJECT
from inference.models import Generation
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order

CATALOGUE = PROJECT / "catalog" / "data" / "catalogue.json"
MESSAGES = [{"role": "user", "content": "one"}]


def make_wav() -> bytes:
    """Returns a tenth of a second of silence."""
    data = bytes(3_200)
    head = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, 32_000, 2, 16)
    body = b"WAVE" + head + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


BODIES: dict[str, tuple[Operation, dict[str, Any]]] = {
    "/api/v1/chat/completions": (Operation.CHAT, {"messages": MESSAGES, "max_tokens": 16}),
    "/api/v1/messages": (Operation.CHAT, {"messages": MESSAGES, "max_tokens": 16}),
    "/api/v1/responses": (Operation.CHAT, {"input": "one", "max_output_tokens": 16}),
    "/api/v1/completions": (Operation.TEXT, {"prompt": "one", "max_tokens": 16}),
    "/api/v1/embeddings": (Operation.EMBEDDINGS, {"input": "one"}),
    "/api/v1/rerank": (Operation.RERANK, {"query": "one", "documents": ["one", "two"]}),
    "/api/v1/audio/speech": (Operation.SPEECH, {"input": "one", "voice": "alloy"}),
    "/api/v1/audio/transcriptions": (
        Operation.TRANSCRIPTION,
        {"input_audio": {"data": base64.b64encode(make_wav()).decode(), "format": "wav"}},
    ),
    "/api/v1/images": (Operation.IMAGES, {"prompt": "one"}),
    "/api/v1/images/generations": (Operation.IMAGES, {"prompt": "one"}),
}
RESPONSES = "/api/v1/responses"


@pytest.fixture
def listed(site: Site) -> list[LanguageModel]:
    """Imports the bundled catalogue; its providers of OpenAI's format are at the simulator."""
    call_command("import_catalog", str(CATALOGUE), verbosity=0)
    for provider in Provider.objects.filter(dialect="openai").exclude(base_url=None):
        provider.base_url = site.upstream.base_url
        provider.save_fields("base_url")
        provider.set_credential(Secret(f"sk-{provider.slug}-0123456789"))
    models = list(LanguageModel.objects.exclude(pk=site.model.pk))
    assert len(models) >= 80
    return models


def is_served(model: LanguageModel, operation: Operation, path: str) -> bool:
    """Returns whether a provider with a credential speaks what the model produces."""
    if OPERATIONS[operation].outputs.isdisjoint(model.output_modalities):
        return False
    if dialects.lacks_chat("openai", model.capabilities) and path != RESPONSES:
        return False
    endpoints = ModelEndpoint.objects.filter(model=model, provider__dialect="openai")
    dialect = dialects.get("openai")
    return dialect is not None and operation in dialect.operations and endpoints.exists()


@pytest.mark.parametrize("path", BODIES)
def test_every_model_is_served_or_refused_with_the_reason(
    site: Site, listed: list[LanguageModel], path: str
) -> None:
    operation, body = BODIES[path]
    served, native = [], []
    for model in listed:
        site.upstream.clear()
        answer = site.post({**body, "model": model.slug}, path=path)
        if not is_served(model, operation, path):
            assert answer.status_code == 404, (model.slug, answer.text)
            assert site.upstream.requests == []
            if path != "/api/v1/messages":
                excluded = answer.json()["error"]["metadata"]["excluded"]
                assert excluded
                assert all(each["excluded_by"] for each in excluded)
        elif dialects.lacks_chat("openai", model.capabilities):
            # The simulated provider has no Responses of its own: what counts is what it was asked.
            native.append(model.slug)
            [asked] = site.upstream.requests
            assert asked.path == "/v1/responses"
        else:
            served.append(model.slug)
            assert answer.status_code == 200, (model.slug, answer.text)
            assert len(site.upstream.requests) == 1
    assert served
    assert bool(native) is (path == RESPONSES)
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert Generation.objects.count() == len(served) + len(native)
    assert_in_order()
