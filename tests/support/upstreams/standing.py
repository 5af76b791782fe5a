"""Servers of a test's own that the service reaches as providers, over TLS at this host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from catalog.models import Provider
from config.credentials import Secret
from config.local.certificates import ensure_certificates
from tests.support import factories
from tests.support.inference.site import OPERATOR_SECRET
from tests.support.upstreams.speaking import Upstream
from tests.support.upstreams.tls import Script, Server, serving


@contextmanager
def serving_locally(script: Script) -> Iterator[Server]:
    """Serves with a certificate that the service trusts."""
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    with serving(script, certificates.server_context()) as server:
        yield server


@contextmanager
def standing_in(provider: Provider, script: Script) -> Iterator[Server]:
    """Serves in the place of a provider."""
    with serving_locally(script) as server:
        provider.base_url = f"https://localhost:{server.port}/v1"
        provider.save_fields("base_url")
        yield server


@contextmanager
def listening(made: Upstream) -> Iterator[Upstream]:
    """Lets an upstream listen."""
    with serving_locally(made) as made.server:
        yield made


def make_maker(upstream: Upstream) -> Provider:
    """Makes a provider at an upstream, with the operator's credential."""
    dialect = "openai" if upstream.kind == "responses" else upstream.kind
    return factories.make_provider(
        "maker",
        name="Maker",
        dialect=dialect,
        base_url=upstream.base_url,
        secret=Secret(OPERATOR_SECRET),
    )
