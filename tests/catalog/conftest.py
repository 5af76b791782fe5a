"""Fixtures for the tests of the catalogue."""

from __future__ import annotations

import ssl
from ipaddress import ip_network
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from catalog.models import ModelEndpoint
from config.console.sign_in import roles
from config.egress.addresses import EgressPolicy
from tests.support import factories
from tests.support.catalogue import DAY, publish
from tests.support.upstreams.tls import Authority


@pytest.fixture(autouse=True)
def _everything_listed(settings: Any) -> None:
    """Lists the whole catalogue: who can call what is the subject of ``test_callable.py``."""
    settings.MODEL_LISTS = "all"


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    """Clears the cache, which keeps traffic figures for a minute."""
    cache.clear()


@pytest.fixture
def finance(db: None) -> Client:
    """Returns a browser of an operator whose role is Finance."""
    roles.update_roles()
    user = User.objects.create_user("fin", is_staff=True)
    user.groups.add(Group.objects.get(name="Finance"))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def context(authority: Authority, settings: Any) -> ssl.SSLContext:
    """Returns a TLS context for a server at 127.0.0.1, which the egress policy allows."""
    settings.EGRESS_POLICY = EgressPolicy(
        allowed_networks=(ip_network("127.0.0.1/32"),),
        ca_bundle=authority.bundle,
        connect_timeout=4,
        max_response_bytes=100_000,
    )
    return authority.server_context("127.0.0.1")


@pytest.fixture
def catalogue(db: None) -> None:
    """Publishes four models that differ in all filtered columns."""
    now = int(timezone.now().timestamp())
    north = factories.make_provider("north", name="North Star", dialect="openai")
    publish(
        "acme/falcon",
        "0.000003",
        "0.000015",
        name="Falcon 100%",
        created=now - DAY // 2,
        context_length=200_000,
        input_modalities=["text", "image"],
        tokenizer="Claude",
        supported_parameters=["tools", "tool_choice", "seed"],
        endpoint_provider=north,
        endpoint_region="europe",
    )
    hawk = publish(
        "acme/hawk",
        "0.0000005",
        "0.0000015",
        name="Hawk",
        created=now - 10 * DAY - 60,
        context_length=131_072,
        tokenizer="Llama3",
        supported_parameters=["tools"],
        endpoint_region="us",
        endpoint_zdr=True,
    )
    factories.make_endpoint(
        hawk.model, north, price=factories.make_price("0.000009", "0.000009"), region="europe"
    )
    publish(
        "birds/owl",
        "0",
        "0",
        name="Owl_7",
        created=now - 100 * DAY - 60,
        context_length=None,
        input_modalities=["text", "audio", "file"],
        tokenizer="Llama4",
        endpoint_region="us",
    )
    publish(
        "birds/wren",
        created=now - 400 * DAY,
        input_modalities=[],
        output_modalities=["embeddings"],
        tokenizer=None,
    )


@pytest.fixture
def falcon(db: None) -> ModelEndpoint:
    return factories.make_endpoint(
        factories.make_model("acme/falcon", name="Falcon", created=1_780_272_000, tokenizer=None),
        factories.make_provider("north", name="North Star"),
        price=factories.make_price(cache_read="0.0000001"),
        context_length=65_536,
        max_completion_tokens=4096,
        quantization="fp8",
        zdr=True,
        supported_parameters=["seed", "tools"],
    )
