"""Tests which cloud credentials are accepted or refused, and with which message."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import botocore
import botocore.loaders
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from django.core.management import CommandError, call_command

from accounts.models import ByokCredential
from catalog.capabilities import Capabilities, NativeFormat
from catalog.dialects.base import Call, Operation, build_stated, clean_message
from catalog.dialects.shared import credentials
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.models import DialectName
from config.credentials import Secret
from tests.support import factories
from tests.support.database import snapshots
from tests.support.dialects.reading import dialect_of
from tests.support.embedded import CLOUD_HOSTS
from tests.support.factories import Tenant
from tests.support.upstreams import clouds

UNKNOWN = "The credential has an unknown member; remove it."
DATED = "/openai/deployments/gpt/chat/completions?api-version=2024-10-21"
NO_OBJECT = "The credential must be one JSON object that names each member once."


def secret(members: Any) -> Secret:
    return Secret(members if isinstance(members, str) else json.dumps(members))


def missing(member: str) -> str:
    return f"The credential must have {member}."


def invalid(member: str) -> str:
    return f"The credential's {member} is not valid."


def refusal(parse: Callable[[Secret], Any], members: Any) -> str:
    with pytest.raises(InvalidCredential) as caught:
        parse(secret(members))
    return str(caught.value)


@pytest.mark.parametrize(
    "dialect", [dialect for dialect in DialectName if dialect.has_url_in_credential]
)
def test_each_cloud_dialect_reads_its_host_from_the_credential(dialect: DialectName) -> None:
    members = {"azure": clouds.azure, "bedrock": clouds.bedrock, "vertex": clouds.vertex}[dialect]()
    assert dialect_of(dialect.value).host(None, secret(members)) in CLOUD_HOSTS


@pytest.mark.parametrize(
    "url", ["https://Contoso.OpenAI.azure.com", f"https://{clouds.AZURE_HOST}/"]
)
def test_azure_accepts_an_endpoint_in_the_form_of_the_portal(url: str) -> None:
    assert credentials.parse_azure(secret(clouds.azure(endpoint_url=url))).host == clouds.AZURE_HOST


TARGETS = [
    ("", "/openai/v1/chat/completions"),
    ("/", "/openai/v1/chat/completions"),
    ("/openai/v1/", "/openai/v1/chat/completions"),
    ("/openai/v1/?api-version=preview", "/openai/v1/chat/completions?api-version=preview"),
    ("/openai/deployments/gpt/chat/completions?api-version=2024-10-21", DATED),
    ("/openai/responses?api-version=2024-10-21", DATED),
    ("/models/chat/completions?api-version=2024-05-01-preview",
     "/models/chat/completions?api-version=2024-05-01-preview"),
    ("/team/llm", "/team/llm/openai/v1/chat/completions"),
    ("/team/openai/deployments/x/embeddings?api-version=2024-10-21", f"/team{DATED}"),
    ("/openai-proxy", "/openai-proxy/openai/v1/chat/completions"),
]  # fmt: skip


@pytest.mark.parametrize(("shown", "called"), TARGETS)
@pytest.mark.parametrize("root", [f"https://{clouds.AZURE_HOST}", "https://gate.example:8443"])
def test_azure_is_called_where_its_target_uri_says(root: str, shown: str, called: str) -> None:
    stored = secret(clouds.azure(endpoint_url=f"{root}{shown}"))
    call = Call(Operation.CHAT, None, "gpt", stored, {"messages": []})
    speaker = dialect_of("azure")
    assert build_stated(speaker.build, call).url == f"{root}{called}"
    assert speaker.host(None, stored) == root.removeprefix("https://").partition(":")[0]


def test_claude_is_called_at_the_target_uri_of_an_api_manager() -> None:
    claude = Capabilities(NativeFormat.ANTHROPIC)
    speaker = dialect_of("azure", claude)
    url = "https://gate.example/llm/anthropic/v1/messages"
    stored = secret(clouds.azure(endpoint_url=url))
    words = [{"role": "user", "content": "one"}]
    fields = {"messages": msgspec.Raw(json.dumps(words).encode()), "max_tokens": 16}
    call = Call(Operation.CHAT, None, "claude", stored, fields, capabilities=claude)
    assert build_stated(speaker.build, call).url == url
    with pytest.raises(InvalidCredential, match="only at the host of a Foundry"):
        speaker.host(None, secret(clouds.azure(endpoint_url="https://gate.example/llm")))


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoint_url": f"https://{clouds.AZURE_HOST}?api-version=2024-10-21"},
        {"query": {"api-version": "2024-10-21"}},
    ],
)
def test_azure_refuses_two_versions(changes: dict[str, Any]) -> None:
    members = clouds.azure(api_version="2025-04-01-preview", **changes)
    with pytest.raises(InvalidCredential, match="states two versions"):
        credentials.parse_azure(secret(members))


@pytest.mark.parametrize("version", ["2024-10-21", "2025-04-01-preview"])
def test_azure_accepts_a_dated_version(version: str) -> None:
    found = credentials.parse_azure(secret(clouds.azure(api_version=version)))
    assert found.api_version == version


@pytest.mark.parametrize(
    "url",
    [
        "http://contoso.openai.azure.com",
        "https://.openai.azure.com",
        "https://evil.example#.openai.azure.com",
        "https://evil.example?.openai.azure.com",
        "https://evil.example\\.openai.azure.com",
        "https://user@contoso.openai.azure.com",
        "https://contoso.openai.azure.com/../openai",
        "https://contoso.openai.azure.com?x=1",
        "https://contoso.openai.azure.com/openai?api-version=2024-10-21&x=1",
        "https://contoso.openai.azure.com?api-version=",
        "https://contoso.openai.azure.com?api-version=2024-10-21\n",
        "https://contoso.openai.azure.com\n",
        " https://contoso.openai.azure.com",
        "https://-contoso.openai.azure.com",
        "https://contoso-.openai.azure.com",
        "https://ｃontoso.openai.azure.com",
        f"https://{'a' * 64}.openai.azure.com",
        f"https://contoso.openai.azure.com/{'a' * 2048}",
        "https://0.0.0.0",
        "contoso.openai.azure.com",
        "",
        None,
        5,
        ["https://contoso.openai.azure.com"],
    ],
)
def test_azure_refuses_any_other_endpoint(url: Any) -> None:
    members = {"api_key": clouds.AZURE_KEY, "endpoint_url": url}
    message = refusal(credentials.parse_azure, members)
    assert "endpoint_url" in message
    assert "not valid" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"api_key": None}, missing("api_key")),
        ({"endpoint_url": None}, missing("endpoint_url")),
        ({"api_key": "short"}, invalid("api_key")),
        ({"api_key": "with a space in it"}, invalid("api_key")),
        ({"api_key": "line-break-in-it\r\nX: y"}, invalid("api_key")),
        ({"api_key": 12345678}, invalid("api_key")),
        ({"api_version": "latest"}, invalid("api_version")),
        ({"api_version": "2024-10-21&x=1"}, invalid("api_version")),
        ({"api_version": "2024-10-21\n"}, invalid("api_version")),
        ({"api_version": "٢٠٢٤-10-21"}, invalid("api_version")),
        ({"base_url": "https://evil.example"}, UNKNOWN),
    ],
)
def test_azure_refuses_invalid_members(changes: dict[str, Any], message: str) -> None:
    assert refusal(credentials.parse_azure, clouds.azure(**changes)) == message


@pytest.mark.parametrize(
    "parse", [credentials.parse_azure, credentials.parse_bedrock, credentials.parse_vertex]
)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "a-bare-key-0123456789",
        '["api_key"]',
        '"text"',
        '{"api_key": "x"',
        '{"region": "us-east-1", "region": "us-east-2"}',
        "[" * 100_000,
    ],
)
def test_credential_that_is_not_an_object_is_refused(parse: Any, text: str) -> None:
    assert refusal(parse, text) == NO_OBJECT


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("us-east-1", "bedrock-runtime.us-east-1.amazonaws.com"),
        ("ap-southeast-12", "bedrock-runtime.ap-southeast-12.amazonaws.com"),
        ("us-gov-west-1", "bedrock-runtime.us-gov-west-1.amazonaws.com"),
        ("cn-north-1", "bedrock-runtime.cn-north-1.amazonaws.com.cn"),
        ("eusc-de-east-1", "bedrock-runtime.eusc-de-east-1.amazonaws.eu"),
    ],
)
def test_bedrock_has_a_host_in_every_region(region: str, host: str) -> None:
    assert credentials.parse_bedrock(secret(clouds.bedrock(region=region))).host == host
    assert credentials.parse_bedrock(secret(clouds.bedrock_key(region=region))).host == host


def test_bedrock_hosts_agree_with_the_table_of_botocore() -> None:
    partitions = botocore.loaders.create_loader().load_data("partitions")["partitions"]
    checked = 0
    for partition in partitions:
        suffix = partition["outputs"]["dnsSuffix"]
        for region in partition["regions"]:
            if region.endswith("-global"):
                continue
            try:
                host = credentials.parse_bedrock(secret(clouds.bedrock(region=region))).host
            except InvalidCredential:
                assert "-iso" in region
            else:
                assert host == f"bedrock-runtime.{region}.{suffix}"
                checked += 1
    assert checked == sum(
        not region.endswith("-global") and "-iso" not in region
        for partition in partitions
        for region in partition["regions"]
    )


@pytest.mark.parametrize(
    "region",
    [
        "",
        "us",
        "us-east",
        "us-east-",
        "us-east-123",
        "US-EAST-1",
        "us-east-1.evil.example",
        "us-east-1/",
        "us-east-1\n",
        "us-east-１",
        "us-iso-east-1",
        "eu-isoe-west-1",
        "x-east-1",
        7,
    ],
)
def test_bedrock_refuses_an_invalid_region(region: Any) -> None:
    for members in (clouds.bedrock(region=region), clouds.bedrock_key(region=region)):
        assert refusal(credentials.parse_bedrock, members) == invalid("region")


def test_bedrock_reads_api_keys_access_keys_and_session_tokens() -> None:
    assert credentials.parse_bedrock(secret(clouds.bedrock_key())).login == Secret(
        clouds.BEDROCK_KEY
    )
    pair = credentials.AccessKey(
        Secret(clouds.ACCESS_KEY_ID), Secret(clouds.SECRET_ACCESS_KEY), None
    )
    assert credentials.parse_bedrock(secret(clouds.bedrock())).login == pair
    session = credentials.AccessKey(
        Secret(clouds.ACCESS_KEY_ID), Secret(clouds.SECRET_ACCESS_KEY), Secret(clouds.SESSION_TOKEN)
    )
    members = clouds.bedrock(session_token=clouds.SESSION_TOKEN)
    assert credentials.parse_bedrock(secret(members)).login == session


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (clouds.bedrock(region=None), missing("region")),
        (clouds.bedrock(access_key_id=None), missing("access_key_id")),
        (clouds.bedrock(secret_access_key=None), missing("secret_access_key")),
        (clouds.bedrock(access_key_id="AKIA/0123456789AB"), invalid("access_key_id")),
        (clouds.bedrock(access_key_id="akia0123456789ab"), invalid("access_key_id")),
        (clouds.bedrock(secret_access_key="no spaces here"), invalid("secret_access_key")),
        (clouds.bedrock(session_token="x\r\ny" * 8), invalid("session_token")),
        (clouds.bedrock_key(api_key="x y"), invalid("api_key")),
        (clouds.bedrock(endpoint="x"), UNKNOWN),
        (clouds.bedrock_key(session_token="x"), UNKNOWN),
    ],
)
def test_bedrock_refuses_invalid_members(members: dict[str, Any], message: str) -> None:
    assert refusal(credentials.parse_bedrock, members) == message


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("us-central1", "us-central1-aiplatform.googleapis.com"),
        ("europe-west12", "europe-west12-aiplatform.googleapis.com"),
        ("northamerica-northeast1", "northamerica-northeast1-aiplatform.googleapis.com"),
        ("global", "aiplatform.googleapis.com"),
        ("us", "aiplatform.us.rep.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
    ],
)
def test_vertex_has_a_host_in_every_location(location: str, host: str) -> None:
    assert credentials.parse_vertex(secret(clouds.vertex(location=location))).host == host


def test_vertex_reads_a_key_file_and_hides_the_private_key() -> None:
    found = credentials.parse_vertex(secret(clouds.vertex()))
    assert (found.project_id, found.location) == (clouds.PROJECT, "us-central1")
    assert (found.client_email, found.private_key_id) == (clouds.ACCOUNT, clouds.KEY_ID)
    assert found.private_key.private_numbers() == clouds.private_key().private_numbers()
    assert "private_key=" not in repr(found)


def test_vertex_requires_only_the_members_that_it_uses() -> None:
    used = ("type", "client_email", "private_key_id", "private_key")
    file = {name: clouds.account()[name] for name in used}
    assert (
        credentials.parse_vertex(secret(clouds.vertex(service_account=file))).private_key_id
        == clouds.KEY_ID
    )


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"project_id": None}, missing("project_id")),
        ({"location": None}, missing("location")),
        ({"service_account": None}, "The credential must have service_account, a JSON object."),
        ({"service_account": "a path"}, "The credential must have service_account, a JSON object."),
        ({"project_id": "short"}, invalid("project_id")),
        ({"project_id": "1starts-with-a-digit"}, invalid("project_id")),
        ({"project_id": "ends-with-a-hyphen-"}, invalid("project_id")),
        ({"project_id": "a" * 31}, invalid("project_id")),
        ({"project_id": "../../etc"}, invalid("project_id")),
        ({"project_id": "example-project-1\n"}, invalid("project_id")),
        ({"location": "evil.example/"}, invalid("location")),
        ({"location": "us-central1.evil"}, invalid("location")),
        ({"location": "us-central"}, invalid("location")),
        ({"location": "US-central1"}, invalid("location")),
        ({"host": "evil.example"}, UNKNOWN),
    ],
)
def test_vertex_refuses_invalid_members(members: dict[str, Any], message: str) -> None:
    assert refusal(credentials.parse_vertex, clouds.vertex(**members)) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "authorized_user"}, invalid("type")),
        ({"type": None}, missing("type")),
        ({"client_email": "somebody@example.com"}, invalid("client_email")),
        ({"client_email": None}, missing("client_email")),
        ({"private_key_id": "not-hexadecimal"}, invalid("private_key_id")),
        ({"private_key": None}, missing("private_key")),
        ({"private_key": "no PEM"}, invalid("private_key")),
        ({"universe_domain": "evil.example"}, invalid("universe_domain")),
        ({"token_uri": 5}, invalid("token_uri")),
        ({"quota_project_id": "another"}, UNKNOWN),
    ],
)
def test_vertex_refuses_an_invalid_key_file(changes: dict[str, Any], message: str) -> None:
    members = clouds.vertex(service_account=clouds.account(**changes))
    assert refusal(credentials.parse_vertex, members) == message


def test_vertex_refuses_a_damaged_weak_or_non_rsa_key() -> None:
    good = clouds.pem(clouds.private_key())
    bad = [
        good.replace(good[100:110], "AAAAAAAAAA", 1),
        clouds.pem(rsa.generate_private_key(public_exponent=65537, key_size=1024)),
        clouds.pem(ec.generate_private_key(ec.SECP256R1())),
        good.replace("BEGIN PRIVATE", "BEGIN RSA PRIVATE"),
    ]
    for key in bad:
        members = clouds.vertex(service_account=clouds.account(private_key=key))
        assert refusal(credentials.parse_vertex, members) == invalid("private_key")


@pytest.mark.parametrize(
    ("members", "part"),
    [
        (clouds.azure(), clouds.AZURE_KEY),
        (clouds.bedrock_key(), clouds.BEDROCK_KEY),
        (clouds.bedrock(), clouds.SECRET_ACCESS_KEY),
        (clouds.bedrock(), clouds.ACCESS_KEY_ID),
        (clouds.bedrock(session_token=clouds.SESSION_TOKEN), clouds.SESSION_TOKEN),
        (clouds.vertex(), clouds.pem(clouds.private_key())),
        ("a-bare-key-0123456789", "a-bare-key-0123456789"),
        ("{no object at all", "{no object at all"),
        ("{}", "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJ4In0.c2lnbmF0dXJl"),
    ],
)
def test_clean_message_masks_all_parts_of_a_credential(members: Any, part: str) -> None:
    assert clean_message(f"Refused: {part}!", secret(members)) == "Refused: ********!"


def test_clean_message_keeps_host_and_region() -> None:
    text = f"There is no deployment at {clouds.AZURE_HOST} in us-east-1."
    assert clean_message(text, secret(clouds.azure())) == text


PROVIDERS = {
    "azure": (clouds.azure(), clouds.azure(api_version="latest")),
    "bedrock": (clouds.bedrock(), clouds.bedrock(region="nowhere")),
    "vertex": (clouds.vertex(), clouds.vertex(location="evil.example/")),
}


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_a_malformed_credential_is_not_stored(tenant: Tenant, dialect: str) -> None:
    factories.make_provider("cloud", dialect=dialect, base_url=None)
    client = factories.client(tenant.management_key)
    before = snapshots.everything()
    for key in (json.dumps(PROVIDERS[dialect][1]), "a-bare-key-0123456789", "{}"):
        refused = client.post("/api/v1/byok", {"provider": "cloud", "key": key})
        assert refused.status_code == 400
        assert list(refused.json()["error"]["metadata"]["fields"]) == ["key"]
        assert key not in refused.content.decode()
    assert snapshots.everything() == before


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_a_well_formed_credential_is_stored(tenant: Tenant, dialect: str) -> None:
    factories.make_provider("cloud", dialect=dialect, base_url=None)
    key = json.dumps(PROVIDERS[dialect][0])
    stored = factories.client(tenant.management_key).post(
        "/api/v1/byok", {"provider": "cloud", "key": key}
    )
    assert stored.status_code == 201, stored.content
    assert ByokCredential.objects.get().reveal() == Secret(key)


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_set_provider_credential_refuses_a_malformed_credential(
    db: None, monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    provider = factories.make_provider("cloud", dialect=dialect, base_url=None)
    good, bad = PROVIDERS[dialect]
    for text in (json.dumps(bad), "a-bare-key-0123456789"):
        monkeypatch.setattr("sys.stdin", typed(text.encode()))
        with pytest.raises(CommandError, match=r"^The credential"):
            call_command("set_provider_credential", "cloud", stdout=io.StringIO())
        provider.refresh_from_db()
        assert not provider.has_credential
    monkeypatch.setattr("sys.stdin", typed(json.dumps(good, indent=2).encode()))
    call_command("set_provider_credential", "cloud", stdout=io.StringIO())
    provider.refresh_from_db()
    assert json.loads(provider.reveal_credential().reveal()) == good


def typed(data: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")


@pytest.mark.parametrize("text", ["sk-of-the-operator-0123456789", '{"api_key": "sk-0123456789"}'])
def test_set_provider_credential_reads_a_file_as_windows_writes_it(
    db: None, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    provider = factories.make_provider("acme")
    monkeypatch.setattr("sys.stdin", typed(f"\ufeff{text}\r\n".encode()))
    call_command("set_provider_credential", "acme", stdout=io.StringIO())
    provider.refresh_from_db()
    assert provider.reveal_credential().reveal() == text


def test_set_provider_credential_refuses_what_is_not_utf_8(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = factories.make_provider("acme")
    monkeypatch.setattr("sys.stdin", typed("sk-of-the-operator-0123456789".encode("utf-16")))
    with pytest.raises(CommandError, match=r"^standard input: not UTF-8$"):
        call_command("set_provider_credential", "acme", stdout=io.StringIO())
    provider.refresh_from_db()
    assert not provider.has_credential
