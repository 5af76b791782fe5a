"""Sequences of pages and API calls: none leads a role to a secret, a text or another host for one.

Every page that a role may submit is submitted with what a hostile operator would enter. What it
changed stays for a second page, for a third one, and for the API with every key that was shown.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any, Final

import pytest
from django.db import transaction
from django.utils import timezone

from accounts.models import BroadcastDestination, ByokCredential, Subscription
from catalog.models import Provider
from config.apps import Role
from config.secrets import seal_key
from inference.stored_texts import StoredText, TextKey, associate_key, make_key
from inference.texts.contents import Content, seal_content
from tests.support import factories
from tests.support.console import SECOND_FACTOR, SECRET, SUBMIT, count_written, urls
from tests.support.endpoints.creating import body_of
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import sign_in
from tests.support.operators.powers import WRITES
from tests.support.simulator.server import Simulator

TEXT: Final = "canary-stored-prompt-5d41402abc4b2a76"
KEY: Final = re.compile(r"\b[sm]k-cw-[0-9A-Za-z]{49}\b")
HOME: Final = "victim.example"
PARTS: Final = 6
# What may use or show a secret; any other page comes before one of these.
LAST: Final = re.compile(
    "endpoints_privateendpoint_(add|edit|replace_deployment|validate|validate_again|activate|enable)"
    "|accounts_(byokcredential|subscription|broadcastdestination)_(change|rotate|send_test|move)"
    "|accounts_apikey_(add|change|rotate)|catalog_provider_change|inference_generation_read_text"
    "|auth_(user|group)_(add|change)"
)
# How many sequences follow each page.
FOLLOWED: Final = {Role.SUPPORT: 3, Role.FINANCE: 2, Role.ADMINISTRATOR: 1, Role.READ_ONLY: 0}


class Forms(HTMLParser):
    """The fields of the largest form of a page, with the values that a browser would send.

    Half of the boxes that are empty are ticked.
    """

    def __init__(self, text: str, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice
        self._forms: list[dict[str, str]] = []
        self._choice = self._area = ""
        self.feed(text)
        self.fields = max(self._forms, key=len, default={})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        name = given.get("name", "")
        if tag == "form":
            self._forms.append({})
        elif not self._forms:
            return
        elif tag == "input" and name and given.get("type") not in ("submit", "file", "button"):
            is_box = given.get("type") in ("checkbox", "radio")
            if not is_box or "checked" in given or self._dice.random() < 0.5:
                self._forms[-1][name] = given.get("value", "on" if is_box else "")
        elif tag == "select":
            self._choice = name
            self._forms[-1][name] = ""
        elif tag == "option" and self._choice:
            if "selected" in given or not self._forms[-1][self._choice]:
                self._forms[-1][self._choice] = given.get("value", "")
        elif tag == "textarea":
            self._area = name
            self._forms[-1][name] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._choice = ""
        elif tag == "textarea":
            self._area = ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self._forms[-1][self._area] += data.lstrip("\n")


class Walker:
    """An operator of one role, and what has been shown to them."""

    def __init__(
        self, role: Role, world: dict[str, Any], simulator: Simulator, dice: random.Random
    ) -> None:
        self.client = sign_in("walker", role)
        self.role = role
        self.simulator = simulator
        self.dice = dice
        self.shown = ""
        owner, draft = str(world["accounts.organization"].pk), world["endpoints.privateendpoint"]
        # What fields without a value get.
        self._known = {
            "organization": owner, "owner": owner, "workspace": str(world["accounts.workspace"].pk),
            "model": str(draft.model_id), "provider": str(draft.provider_id),
            "upstream_model_id": "sim-echo", "prompt": "0", "completion": "0", "limit": "1",
            "email": "walk@example.com", "slug": "walk", "name": "walk", "reason": "walk",
            "note": "walk", "amount": "1", "pattern": "walk",
        }  # fmt: skip
        self.steps = [step for step in urls(world) if role in WRITES.get(step[0], ())]

    def _read(self, response: Any) -> None:
        if not response.streaming:
            self.shown += response.content.decode(errors="replace")

    def submit(self, path: str) -> bool:
        """Submits a page as a hostile operator; returns whether that changed anything."""
        response = self.client.get(path)
        self._read(response)
        fields = {}
        if response.status_code == 200:
            fields = Forms(response.content.decode(), self.dice).fields
        form = {**SUBMIT, **{name: self._enter(name, value) for name, value in fields.items()}}
        before = count_written()
        self._read(self.client.post(path, form))
        return count_written() != before

    def _enter(self, name: str, value: str) -> str:
        """Returns what a field gets: every address is the operator's own."""
        field = name.rpartition("-")[2]
        if re.search("secret|password|token", field):
            return ""
        if "host" in field or "domain" in field:
            return "127.0.0.1"
        if re.search("url|endpoint$", field):
            return self.simulator.base_url
        if not value:
            return self._known.get(field, "")
        return re.sub(r"https://[^\s\"'<>]+", self.simulator.base_url, value)


@contextmanager
def undone() -> Iterator[None]:
    """Takes back what the block writes."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def store_text(generation: Any) -> None:
    owner, secret = generation.organization_id, make_key()
    key = TextKey.objects.create(
        organization_id=owner,
        sealed=seal_key(secret, associated=associate_key(owner)),
        created_at=timezone.now(),
    )
    content = Content({"prompt": TEXT}, {"completion": TEXT})
    StoredText.objects.create(
        generation_id=generation.pk,
        organization_id=owner,
        workspace_id=generation.workspace_id,
        api_key_id=generation.api_key_id,
        text_key_id=key.pk,
        sealed=seal_content(content, secret, owner, generation.pk),
        input_bytes=len(TEXT),
        output_bytes=len(TEXT),
        is_truncated=False,
        created_at=generation.created_at,
    )


def find_hosts() -> dict[str, set[str]]:
    """Returns where each stored secret may go."""
    found: dict[str, set[str]] = {}
    for credential in ByokCredential.objects.exclude(sealed=b""):
        if credential.reveal().reveal() == SECRET:
            found.setdefault("credential", set()).update(credential.bound_domains or ())
            found["credential"].update(credential.allowed_hosts or ())
    for destination in BroadcastDestination.objects.all():
        if SECRET in destination.receiver().headers.values():
            found.setdefault("destination", set()).add(destination.host)
    for provider in Provider.objects.exclude(sealed_credential=None):
        if provider.reveal_credential().reveal() == SECRET:
            found["provider"] = set(provider.own_hosts())
    return found


def ask_api(secret: str, world: dict[str, Any], simulator: Simulator) -> str:
    """Calls the API with a key that was shown; returns all answers."""
    caller = factories.client(secret)
    endpoint, generation = world["endpoints.privateendpoint"], world["inference.generation"]
    credential = world["accounts.byokcredential"]
    activate = {"workspace_id": str(generation.workspace_id)}
    place = {"base_url": simulator.base_url, "activate": activate}
    create = body_of(endpoint.model, endpoint.provider, **place)
    calls: list[tuple[str, str, Any]] = [
        ("get", f"generation?id={generation.pk}", None),
        ("get", f"generation/content?id={generation.pk}", None),
        ("get", "keys", None),
        ("get", "byok", None),
        ("patch", f"byok/{credential.pk}", {"allowed_hosts": ["127.0.0.1"]}),
        ("post", "private-endpoints", create),
        ("post", "keys", {"name": "further"}),
        ("get", "webhooks", None),
        ("get", "observability/destinations", None),
    ]
    shown = ""
    for method, path, body in calls:
        answer = getattr(caller, method)(f"/api/v1/{path}", body, format="json")
        shown += answer.content.decode()
        for further in set(KEY.findall(answer.content.decode())) - {secret}:
            path = f"/api/v1/generation/content?id={generation.pk}"
            shown += factories.client(further).get(path).content.decode()
    return shown


def judge(walker: Walker, world: dict[str, Any], tenant: Tenant, path: str) -> None:
    """Asserts that a sequence has led nowhere."""
    keys = set(KEY.findall(walker.shown))
    if walker.role is not Role.ADMINISTRATOR:
        assert keys == set(), path
    for secret in keys:
        walker.shown += ask_api(secret, world, walker.simulator)
    for canary in (SECRET, TEXT, SECOND_FACTOR, tenant.api_key, tenant.management_key):
        assert canary not in walker.shown, path
    walker.shown = ""
    sent = [str(request.headers) + str(request.body) for request in walker.simulator.requests]
    assert not any(SECRET in each for each in sent), path
    homes = {
        "credential": {HOME}, "destination": {"otel.example"}, "provider": {"api.example.com"},
    }  # fmt: skip
    assert all(hosts <= homes[owner] for owner, hosts in find_hosts().items()), path
    url = Subscription.objects.values_list("url", flat=True)
    assert not any(walker.simulator.base_url in each for each in url if each), path


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("role", [role for role, count in FOLLOWED.items() if count])
def test_no_sequence_leads_to_a_secret_a_text_or_another_host(
    world: dict[str, Any], tenant: Tenant, simulator: Simulator, role: Role, part: int
) -> None:
    ByokCredential.objects.update(bound_domains=[HOME])
    store_text(world["inference.generation"])
    simulator.clear()
    dice = random.Random(part)
    walker = Walker(role, world, simulator, dice)
    last = [step for step in walker.steps if LAST.fullmatch(step[0])]
    for first, path in walker.steps[part::PARTS]:
        with undone():
            has_changed = walker.submit(path)
            judge(walker, world, tenant, first)
            for _ in range(FOLLOWED[role] if has_changed and last else 0):
                second, third = dice.choice(last), dice.choice(last)
                with undone():
                    walker.submit(second[1])
                    walker.submit(third[1])
                    judge(walker, world, tenant, f"{first}, {second[0]}, {third[0]}")
