"""``connect --organization``: a private provider and private endpoints, all of it or nothing."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import main_thread
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts.models import ByokCredential, Organization, Workspace
from catalog.connecting.servers import recognize
from catalog.models import LanguageModel, ModelEndpoint, Provider
from config.credentials import Secret
from config.egress import EgressPolicy
from config.local.certificates import ensure_certificates
from endpoints.models import NewModel, PrivateEndpoint, PrivateProvider, ValidationStale
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.validating import validate, wait_until_held
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator
from tests.support.upstreams.tls import Authority, answering_anything

KEY = "sk-of-the-server-0123456789"
OTHER = "sk-of-something-else-0123456789"
NEW = "sk-that-is-new-0123456789"


@pytest.fixture(autouse=True)
def _nothing_is_allowed(transactional_db: None, settings: Any) -> None:
    settings.EGRESS_POLICY = EgressPolicy(connect_timeout=5)


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return factories.make_tenant()


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Simulator]:
    with Simulator(ensure_certificates(tmp_path), keys={KEY}).run_in_thread() as running:
        running.authority = str(tmp_path / "ca.pem")  # type: ignore[attr-defined]
        yield running


def arguments_of(tenant: Tenant, upstream: Any, *more: str) -> list[str]:
    organization = str(tenant.organization.pk)
    options = ["--organization", organization, "--ca", upstream.authority, "--key", KEY]
    return [upstream.base_url, *options, *more]


def connect(*arguments: str) -> tuple[dict[str, Any], str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("connect", *arguments, "--json", stdout=out, stderr=err)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found, err.getvalue()


def refuse(*arguments: str) -> str:
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("connect", *arguments, "--json", stdout=out, stderr=io.StringIO())
    assert (caught.value.returncode, out.getvalue()) == (1, "")
    return str(caught.value)


def assert_nothing_in_use(tenant: Tenant) -> None:
    organization = tenant.organization.pk
    assert not PrivateEndpoint.objects.for_organization(organization).exists()
    assert not PrivateProvider.objects.for_organization(organization).exists()
    assert not ByokCredential.objects.for_organization(organization).exists()
    assert not LanguageModel.objects.of_everybody().filter(is_listed=True).exists()
    tenant.organization.refresh_from_db()
    assert tenant.organization.allowed_networks is None
    assert tenant.organization.ca_certificates == ""


def test_connect_activates_private_endpoints(tenant: Tenant, upstream: Simulator) -> None:
    arguments = arguments_of(tenant, upstream, "--allow", "--models", "sim-echo")
    with CaptureQueriesContext(connection) as queries:
        found, notes = connect(*arguments)
    # The catalogue has nothing new, and is not locked.
    assert not [each for each in queries if "causeway_catalogue" in each["sql"]]
    provider = PrivateProvider.objects.get()
    endpoint = PrivateEndpoint.objects.select_related("model", "price").get()
    assert found["provider"] == provider.slug
    assert found["models"] == ["acme/sim-echo"] == [endpoint.model.slug]
    # Nobody else learns the name of the model.
    assert endpoint.model.organization == tenant.organization
    assert not LanguageModel.objects.exists()
    assert found["endpoints"] == [str(endpoint.pk)]
    assert found["network_allowed"] == "127.0.0.1/32"
    assert found["test"]["status"] == 200
    assert found["models"][0] in found["curl"]
    assert "New in the catalogue" not in notes
    assert (endpoint.status, endpoint.upstream_model_id) == ("active", "sim-echo")
    assert (endpoint.organization, endpoint.private_provider) == (tenant.organization, provider)
    assert (endpoint.price.prompt, endpoint.price.completion) == (0, 0)
    assert (provider.base_url, provider.is_keyless) == (upstream.base_url, False)
    assert ByokCredential.objects.get().reveal().reveal() == KEY
    tenant.organization.refresh_from_db()
    assert tenant.organization.allowed_networks == ["127.0.0.1/32"]
    assert "BEGIN CERTIFICATE" in tenant.organization.ca_certificates
    assert not Provider.objects.exists()
    assert not ModelEndpoint.objects.exists()
    # Again: the key, the network and the authority are known, and nothing is new.
    with snapshots.unchanged():
        again, _ = connect(arguments[0], *arguments[1:3], "--models", "sim-echo")
        assert again == {**found, "network_allowed": None, "test": again["test"]}


@pytest.mark.parametrize(
    ("stored", "is_keyless", "problem"),
    [
        (
            {"bound_domains": ["llm.example.com"]},
            False,
            "The credential is bound by its first use ",
        ),
        ({"disabled": True}, False, "The server wants a key for the list of its models (401)"),
        ({"disabled": False}, True, "The server wants a key for the list of its models (401)"),
    ],
)
def test_a_stored_key_is_sent_only_where_requests_send_it(
    tenant: Tenant, upstream: Simulator, stored: dict[str, Any], is_keyless: bool, problem: str
) -> None:
    arguments = arguments_of(tenant, upstream, "--allow", "--models", "sim-echo")
    connect(*arguments)
    ByokCredential.objects.update(**stored)
    PrivateProvider.objects.update(is_keyless=is_keyless)
    upstream.clear()
    with snapshots.unchanged():
        for options in ((), ("--dry-run",)):
            said = refuse(*arguments[:3], *options)
            assert said.startswith(problem)
            assert "give it with --key-file FILE." in said
    assert not any("authorization" in each.headers for each in upstream.requests)


@pytest.mark.parametrize(
    ("field", "value", "keys"),
    [
        ("disabled", True, [OTHER, NEW]),
        ("workspace", "staging", [OTHER, NEW]),
        ("allowed_models", ["acme/sim-echo"], [OTHER, NEW]),
        ("allowed_hosts", ["elsewhere.example.com"], [OTHER, NEW]),
        ("name", "also for everything", [OTHER, KEY, NEW]),
    ],
)
def test_a_given_key_replaces_none_that_is_for_something_else(
    tenant: Tenant, upstream: Simulator, field: str, value: Any, keys: list[str]
) -> None:
    upstream.keys = {KEY, OTHER, NEW}
    connect(*arguments_of(tenant, upstream, "--allow", "--models", "sim-echo"))
    if field == "workspace":
        value = Workspace.objects.create_workspace(
            organization_id=tenant.organization.pk, name=value, slug=value
        )
    rack: Any = PrivateProvider.objects.get()
    first = factories.make_credential(tenant, rack, OTHER, **{"workspace": None, field: value})
    factories.change(first, sort_order=-1)
    with snapshots.unchanged():
        connect(*arguments_of(tenant, upstream, "--models", "sim-echo"))
    arguments = arguments_of(tenant, upstream, "--models", "sim-extra")
    found, _ = connect(*(NEW if each == KEY else each for each in arguments))
    assert found["models"] == ["acme/sim-extra"]
    stored = ByokCredential.objects.order_by("sort_order")
    assert [each.reveal().reveal() for each in stored] == keys


def test_a_key_that_is_replaced_while_the_server_is_asked_stays(
    tenant: Tenant, upstream: Simulator
) -> None:
    upstream.keys = {KEY, NEW}
    arguments = arguments_of(tenant, upstream, "--allow", "--models", "sim-echo")
    connect(*arguments)

    def rotate() -> None:
        try:
            wait_until_held(upstream)
            ByokCredential.objects.get().rotate(Secret(NEW))
        finally:
            upstream.release(3)
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(rotate)
        found, _ = connect(*arguments[:3], "--models", "sim-held")
        pending.result(60)
    assert found["models"] == ["acme/sim-held"]
    assert ByokCredential.objects.get().reveal() == Secret(NEW)


@pytest.mark.parametrize("others", ["do nothing", "replace it", "remove it"])
def test_a_connection_that_fails_puts_back_no_key_that_others_have_changed(
    tenant: Tenant, upstream: Simulator, others: str
) -> None:
    upstream.keys = {KEY, OTHER, NEW}
    connect(*arguments_of(tenant, upstream, "--allow", "--models", "sim-echo"))

    def change() -> None:
        try:
            wait_until_held(upstream)
            credential = ByokCredential.objects.get()
            assert credential.reveal() == Secret(NEW)
            match others:
                case "replace it":
                    credential.rotate(Secret(OTHER))
                case "remove it":
                    credential.remove()
        finally:
            upstream.release(3)
            connection.close()

    arguments = arguments_of(tenant, upstream, "--models", "sim-extra,sim-held,sim-no-usage")
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(change)
        refuse(*(NEW if each == KEY else each for each in arguments))
        pending.result(60)
    kept = {"do nothing": [KEY], "replace it": [OTHER], "remove it": []}[others]
    present = ByokCredential.objects.filter(deleted_at=None)
    assert [each.reveal().reveal() for each in present] == kept
    assert not PrivateEndpoint.objects.filter(status="draft", deleted_at=None).exists()


def test_an_organization_without_its_default_workspace_is_served(
    tenant: Tenant, upstream: Simulator
) -> None:
    arguments = arguments_of(tenant, upstream, "--allow", "--models", "sim-echo")
    others = [
        Workspace.objects.create_workspace(
            organization_id=tenant.organization.pk, name=name, slug=name
        )
        for name in ("older", "newer")
    ]
    tenant.workspace.close(confirm_default=True)
    connect(*arguments)
    validated = PrivateEndpoint.objects.get(status="active").validation
    assert validated is not None
    assert validated.workspace == others[0]
    for each in others:
        each.close()
    upstream.clear()
    with snapshots.unchanged():
        assert refuse(*arguments).startswith("The organization has no workspace ")
    assert upstream.connections == 0


def test_a_model_of_the_catalogue_keeps_its_slug(tenant: Tenant, upstream: Simulator) -> None:
    factories.make_model("sim-echo", canonical_slug="acme/echo-2026-01-01")
    found, notes = connect(*arguments_of(tenant, upstream, "--allow", "--models", "sim-echo"))
    assert found["models"] == ["sim-echo"]
    assert notes == ""
    assert PrivateEndpoint.objects.get().model == LanguageModel.objects.get()


def test_a_second_authority_is_kept_beside_the_first(
    tenant: Tenant, upstream: Simulator, tmp_path: Path
) -> None:
    arguments = arguments_of(tenant, upstream, "--allow", "--models", "sim-echo")
    connect(*arguments)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other").bundle
    connect(*arguments[:3], "--ca", other, "--models", "sim-echo")
    tenant.organization.refresh_from_db()
    texts = [Path(each).read_text().strip() for each in (upstream.authority, other)]  # type: ignore[attr-defined]
    assert tenant.organization.ca_certificates == "\n".join(texts)
    with snapshots.unchanged():
        connect(*arguments)


@pytest.mark.parametrize(
    ("models", "networks"),
    [
        ("sim-held", ["10.9.9.9/32", "127.0.0.1/32"]),
        ("sim-echo,sim-held,sim-no-usage", ["10.9.9.9/32"]),
    ],
    ids=["while the server is asked", "before a validation fails"],
)
def test_what_others_allow_meanwhile_stays(
    tenant: Tenant, upstream: Simulator, tmp_path: Path, models: str, networks: list[str]
) -> None:
    (tmp_path / "other").mkdir()
    other = Path(Authority(tmp_path / "other").bundle).read_text().strip()

    def allow() -> None:
        try:
            wait_until_held(upstream)
            organization = Organization.objects.get(pk=tenant.organization.pk)
            authorities = filter(None, (organization.ca_certificates, other))
            organization.edit(
                allowed_networks=[*(organization.allowed_networks or ()), "10.9.9.9/32"],
                ca_certificates="\n".join(authorities),
            )
        finally:
            upstream.release(3)
            connection.close()

    arguments = arguments_of(tenant, upstream, "--allow", "--models", models)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(allow)
        if len(networks) == 2:
            connect(*arguments)
        else:
            assert "(missing_usage)" in refuse(*arguments)
        pending.result(60)
    own = Path(upstream.authority).read_text().strip()  # type: ignore[attr-defined]
    tenant.organization.refresh_from_db()
    assert tenant.organization.allowed_networks == networks
    texts = [other, own] if len(networks) == 2 else [other]
    assert tenant.organization.ca_certificates == "\n".join(texts)


def test_a_model_of_the_catalogue_is_not_named_by_the_host(
    tenant: Tenant, upstream: Simulator
) -> None:
    upstream.models_status = 404
    model = "bge/sim-echo"
    _, notes = connect(*arguments_of(tenant, upstream, "--allow", "--models", model))
    assert notes.startswith("New in the catalogue, where others see the name, ")
    assert LanguageModel.objects.get().name == "bge/sim-echo (Server)"


def test_a_connection_that_fails_uses_up_no_name(tenant: Tenant, upstream: Simulator) -> None:
    upstream.models_status = 404
    arguments = arguments_of(tenant, upstream, "--allow", "--models")
    assert "(missing_usage)" in refuse(*arguments, "bge/sim-echo,sim-no-usage")
    assert_nothing_in_use(tenant)
    assert connect(*arguments, "bge/sim-echo")[0]["models"] == ["server/sim-echo"]


def test_a_new_model_has_no_name_of_another_one(tenant: Tenant, upstream: Simulator) -> None:
    factories.make_model("server/sim-echo", is_listed=False)
    factories.make_model("acme/echo", canonical_slug="server/sim-echo-2")
    before = snapshots.everything()["catalog.LanguageModel"]
    upstream.models_status = 404
    model = "bge/sim-echo"
    found, _ = connect(*arguments_of(tenant, upstream, "--allow", "--models", model))
    assert found["models"] == ["server/sim-echo-3"]
    assert set(before) - set(snapshots.everything()["catalog.LanguageModel"]) == set()


def test_a_dry_run_stores_nothing(tenant: Tenant, upstream: Simulator) -> None:
    with snapshots.unchanged():
        options = ("--allow", "--models", "sim-echo", "--dry-run")
        found, _ = connect(*arguments_of(tenant, upstream, *options))
        assert (found["endpoints"], found["test"]["status"]) == ([], 200)
        assert found["models"] == ["acme/sim-echo"]


@pytest.mark.parametrize(
    ("host", "slug"),
    [
        ("api.acme.example", "acme"),
        ("gpu.lan", "gpu"),
        ("gpu_1.lan", "gpu-1"),
        ("llm.xn--bcher-kva.example", "xn-bcher-kva"),
        ("api.x.ai", "server"),
        ("10.0.0.5", "server"),
    ],
)
def test_the_host_of_an_unknown_server_names_its_provider(
    tenant: Tenant, host: str, slug: str
) -> None:
    name = recognize([], host).slug
    provider = PrivateProvider.objects.create_provider(
        organization_id=tenant.organization.pk, name=name
    )
    assert (name, provider.slug) == (slug, slug)


def test_plain_http_is_refused_with_both_ways_out(tenant: Tenant) -> None:
    with snapshots.unchanged():
        message = refuse("http://10.0.0.5:8000/v1", "--organization", str(tenant.organization.pk))
        assert "https://" in message
        assert "--ca FILE" in message
        assert "leave --organization out" in message


def test_refusals_before_anything_is_stored(tenant: Tenant, upstream: Simulator) -> None:
    tenant.organization.edit(endpoint_limit=0)
    before = snapshots.everything()
    own, unknown = str(tenant.organization.pk), str(uuid4())
    url, ca = upstream.base_url, upstream.authority  # type: ignore[attr-defined]
    allowed = ("--organization", own, "--allow")
    wrong = ("--ca", ca, "--key", "wrong-key-0123456789")
    for arguments, message in (
        ((url, "--organization", unknown), f"There is no organization {unknown}."),
        (("openai", "--organization", own), "POST /byok"),
        ((url, "--organization", own), "run the command again with --allow"),
        ((url, *allowed), "give its certificate"),
        ((url, *allowed, *wrong), "The server refuses the key"),
        (arguments_of(tenant, upstream, "--allow", "--models", "none"), "has no model"),
        (arguments_of(tenant, upstream, "--allow"), "endpoint_limit_reached"),
    ):
        assert message in refuse(*arguments)
        assert snapshots.everything() == before


def test_a_second_server_serves_an_own_model_too(
    tenant: Tenant, upstream: Simulator, tmp_path: Path
) -> None:
    connect(*arguments_of(tenant, upstream, "--allow", "--models", "sim-echo"))
    model = LanguageModel.objects.of_everybody().get()
    # The same server has it by another name, so that is another model.
    upstream.models_status = 404
    again, _ = connect(*arguments_of(tenant, upstream, "--models", "vendor/sim-echo"))
    assert again["models"] == ["acme/sim-echo-2"]
    with Simulator(
        ensure_certificates(tmp_path), keys={KEY}, models_status=404
    ).run_in_thread() as b:
        b.authority = upstream.authority  # type: ignore[attr-defined]
        found, _ = connect(*arguments_of(tenant, b, "--models", "vendor/sim-echo"))
    assert found["models"] == ["acme/sim-echo"]
    assert PrivateEndpoint.objects.get(pk=found["endpoints"][0]).model == model


def test_drafts_that_a_broken_off_connection_has_left_are_activated(
    tenant: Tenant, upstream: Simulator
) -> None:
    connect(*arguments_of(tenant, upstream, "--allow", "--models", "sim-echo"))
    drafts = [
        PrivateEndpoint.objects.create_draft(
            organization_id=tenant.organization.pk,
            model_permaslug=f"acme/{name}",
            provider_slug=PrivateProvider.objects.get().slug,
            upstream_model_id=name,
            base_url=base_url,
            model=NewModel(name),
        )[0]
        for name, base_url in (
            ("sim-extra", None),
            ("sim-no-usage", None),
            ("sim-cached", "https://llm.example.com/v1"),
        )
    ]
    models = "sim-echo,sim-extra,sim-no-usage,sim-cached"
    assert "(missing_usage)" in refuse(*arguments_of(tenant, upstream, "--models", models))
    present = PrivateEndpoint.objects.filter(deleted_at=None)
    assert set(present.filter(status="draft")) == set(drafts)
    models = "sim-echo,sim-extra,sim-cached"
    found, _ = connect(*arguments_of(tenant, upstream, "--models", models))
    assert found["models"] == ["acme/sim-cached", "acme/sim-echo", "acme/sim-extra"]
    assert str(drafts[0].pk) in found["endpoints"]
    assert set(present.filter(status="draft")) == set(drafts[1:])


def test_a_server_that_speaks_plain_http_needs_tls(tenant: Tenant) -> None:
    organization = str(tenant.organization.pk)
    with snapshots.unchanged(), answering_anything(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        url = f"https://127.0.0.1:{port}/v1"
        message = refuse(url, "--organization", organization, "--key", KEY, "--allow")
    assert message.startswith(
        f"The server at 127.0.0.1:{port} speaks plain HTTP. A private endpoint is called by "
        "https:// alone. Give the server TLS"
    )
    assert "Use http" not in message


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Lets an interrupt end what runs, which a process of parallel tests ignores."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_leaves_nothing_in_use(tenant: Tenant, upstream: Simulator) -> None:
    """The server holds the call of a validation when somebody presses Ctrl-C."""

    def interrupt() -> None:
        wait_until_held(upstream)
        signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            connect(*arguments_of(tenant, upstream, "--allow", "--models", "sim-echo,sim-held"))
        pending.result(60)
    upstream.release(1)
    assert_nothing_in_use(tenant)


@pytest.fixture
def disabled(tenant: Tenant, upstream: Simulator) -> PrivateEndpoint:
    """Returns a disabled endpoint of a server that took no key, and takes one from then on."""
    upstream.is_keyless = True
    arguments = arguments_of(tenant, upstream, "--allow", "--models", "sim-echo")
    place = arguments.index("--key")
    connect(*arguments[:place], *arguments[place + 2 :])
    upstream.is_keyless = False
    endpoint = PrivateEndpoint.objects.get()
    endpoint.disable()
    return endpoint


def test_a_key_for_a_server_that_fails_leaves_it_without_one(
    tenant: Tenant, upstream: Simulator, disabled: PrivateEndpoint
) -> None:
    models = "sim-extra,sim-no-usage"
    assert "(missing_usage)" in refuse(*arguments_of(tenant, upstream, "--models", models))
    assert PrivateProvider.objects.get().is_keyless
    assert not ByokCredential.objects.filter(deleted_at=None).exists()
    # Its endpoint is enabled as it was before.
    disabled.enable()
    assert PrivateEndpoint.objects.get(status="active") == disabled


def test_a_server_that_gets_a_key_serves_what_was_disabled_for_it(
    tenant: Tenant, upstream: Simulator, disabled: PrivateEndpoint
) -> None:
    found, notes = connect(*arguments_of(tenant, upstream, "--models", "sim-echo,sim-extra"))
    assert (found["models"], notes) == (["acme/sim-echo", "acme/sim-extra"], "")
    disabled.refresh_from_db()
    assert (str(disabled.pk) in found["endpoints"], disabled.activated_by) == (True, "connect")
    assert disabled.validation is not None
    assert disabled.validation.credential == ByokCredential.objects.get()


def test_what_an_owner_has_disabled_stays_so(tenant: Tenant, upstream: Simulator) -> None:
    connect(*arguments_of(tenant, upstream, "--allow", "--models", "sim-echo"))
    endpoint = PrivateEndpoint.objects.get()
    endpoint.disable()
    said = "Disabled, and left so: acme/sim-echo. "
    with snapshots.unchanged():
        for options in ((), ("--dry-run",)):
            arguments = arguments_of(tenant, upstream, "--models", "sim-echo", *options)
            keyed = refuse(*arguments)
            place = arguments.index("--key")
            plain = refuse(*arguments[:place], *arguments[place + 2 :])
            assert plain.startswith(said)
            assert keyed == (
                f"{plain} The key was not stored; replace the former one with PATCH /byok/{{id}} "
                "first."
            )
    models = "sim-echo,sim-extra"
    for options in (("--dry-run",), ()):
        arguments = arguments_of(tenant, upstream, "--models", models, *options)
        found, notes = connect(*arguments)
        assert (found["models"], notes.startswith(said)) == (["acme/sim-extra"], True)
    endpoint.refresh_from_db()
    assert endpoint.status == "disabled"
    # Another endpoint of the model serves it.
    other = PrivateEndpoint.objects.create_draft(
        organization_id=tenant.organization.pk,
        model_permaslug="acme/sim-echo",
        provider_slug=PrivateProvider.objects.get().slug,
        upstream_model_id="sim-echo",
        base_url=None,
    )[0]
    assert validate(other).passed
    other.activate()
    found, _ = connect(*arguments_of(tenant, upstream, "--models", models))
    assert found["models"] == ["acme/sim-echo", "acme/sim-extra"]
    assert found["endpoints"][0] == str(other.pk)


def test_a_connection_that_fails_leaves_a_disabled_endpoint_as_it_was(
    tenant: Tenant, upstream: Simulator, disabled: PrivateEndpoint
) -> None:
    proof, models = disabled.validation_id, "sim-echo,sim-no-usage"
    assert "(missing_usage)" in refuse(*arguments_of(tenant, upstream, "--models", models))
    disabled.refresh_from_db()
    assert (disabled.status, disabled.validation_id) == ("disabled", proof)
    # Its server went elsewhere and came back.
    rack, upstream.is_keyless = PrivateProvider.objects.get(), True
    for base_url in ("https://other.example.com/v1", upstream.base_url):
        rack.edit(base_url=base_url)
    organization = ("--organization", str(tenant.organization.pk))
    said = refuse(upstream.base_url, *organization, "--models", models)
    assert "(missing_usage)" in said
    with snapshots.unchanged(), pytest.raises(ValidationStale):
        disabled.enable()
    found, _ = connect(upstream.base_url, *organization, "--models", "sim-echo")
    assert found["endpoints"] == [str(disabled.pk)]


def test_a_given_key_is_used_also_where_one_was_left(
    tenant: Tenant, upstream: Simulator, disabled: PrivateEndpoint
) -> None:
    rack: Any = disabled.private_provider
    factories.make_credential(tenant, rack, OTHER, workspace=None)
    found, _ = connect(*arguments_of(tenant, upstream, "--models", "sim-extra"))
    assert found["models"] == ["acme/sim-extra"]
    assert not PrivateProvider.objects.get().is_keyless
    assert ByokCredential.objects.get().reveal() == Secret(KEY)


def test_a_server_that_is_moved_while_a_connection_fails_proves_nothing(
    tenant: Tenant, upstream: Simulator, disabled: PrivateEndpoint
) -> None:
    def move() -> None:
        try:
            wait_until_held(upstream)
            PrivateProvider.objects.get().edit(base_url="https://other.example.com/v1")
        finally:
            upstream.release(2)
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(move)
        said = refuse(*arguments_of(tenant, upstream, "--models", "sim-echo,sim-held"))
        pending.result(60)
    assert said.startswith("The endpoint has no passed validation")
    assert PrivateProvider.objects.get().is_keyless
    with snapshots.unchanged(), pytest.raises(ValidationStale):
        disabled.enable()


def test_a_failed_validation_leaves_nothing_in_use(tenant: Tenant, upstream: Simulator) -> None:
    """The first model answers the test request; the second one sends no usage."""
    models = "sim-echo,sim-no-usage"
    message = refuse(*arguments_of(tenant, upstream, "--allow", "--models", models))
    assert message.startswith("The model 'sim-no-usage' did not pass its validation: ")
    assert "(missing_usage)" in message
    assert "--models A,B" in message
    assert_nothing_in_use(tenant)
    found, _ = connect(*arguments_of(tenant, upstream, "--allow", "--models", "sim-echo"))
    assert len(found["endpoints"]) == 1
