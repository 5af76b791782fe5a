"""Tests the exact requests to the clouds at a given time."""

from __future__ import annotations

import datetime
import json
from typing import Any

import botocore.auth
import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from botocore.serialize import create_serializer
from msgspec import Raw, structs
from msgspec.structs import replace

from catalog import dialects
from catalog.capabilities import UNDESCRIBED, Capabilities, NativeFormat, ThinkingControl
from catalog.dialects import anthropic, azure, azure_claude, bedrock, openai, vertex, vertex_claude
from catalog.dialects.base import Call, NativeBody, Operation, Untranslatable
from catalog.dialects.openai.responses import NativeResponses
from catalog.dialects.shared.credentials import InvalidCredential
from config.credentials import Secret
from config.egress import OutboundRequest
from config.egress.addresses import EgressPolicy, InvalidURL, parse_target
from tests.support.dialects.reading import dialect_of
from tests.support.inference.dialects import TOOL, body, capabilities_of
from tests.support.upstreams import clouds

NOW = 1_767_323_045.6  # 2026-01-02T03:04:05Z
STAMP = "20260102T030405Z"
BODY = b'{"messages":[{"role":"user","content":"hi"}],"model":"%s","stream":false}'
STREAM_BODY = (
    b'{"messages":[{"role":"user","content":"hi"}],"model":"%s",'
    b'"stream":true,"stream_options":{"include_usage":true}}'
)
JSON = {"Content-Type": "application/json", "Accept": "application/json"}
CONVERSE_BODY = b'{"messages":[{"role":"user","content":[{"text":"hi"}]}]}'
ARN = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a1b2c3"
EVENTS = {"Content-Type": "application/json", "Accept": "text/event-stream"}


def clock() -> float:
    return NOW


def call(members: dict[str, Any], model: str = "some-model", **changes: Any) -> Call:
    fields = {"messages": [{"role": "user", "content": "hi"}]}
    return Call(
        **{
            "operation": Operation.CHAT,
            "base_url": None,
            "model": model,
            "secret": Secret(json.dumps(members)),
            "fields": fields,
            "capabilities": capabilities_of(model),
            **changes,
        }
    )


def test_azure_uses_the_v1_interface() -> None:
    assert azure.build(call(clouds.azure(), "my-gpt")) == OutboundRequest(
        method="POST",
        url="https://contoso.openai.azure.com/openai/v1/chat/completions",
        headers={"api-key": clouds.AZURE_KEY, **JSON},
        body=BODY % b"my-gpt",
    )


def test_azure_uses_the_dated_interface_that_the_credential_names() -> None:
    members = clouds.azure(api_version="2024-10-21")
    assert azure.build(call(members, "my-gpt", stream=True)) == OutboundRequest(
        method="POST",
        url="https://contoso.openai.azure.com/openai/deployments/my-gpt/chat/completions"
        "?api-version=2024-10-21",
        headers={"api-key": clouds.AZURE_KEY, **EVENTS},
        body=STREAM_BODY % b"my-gpt",
    )


@pytest.mark.parametrize(
    ("version", "path"),
    [(None, "v1/responses"), ("2025-04-01-preview", "responses?api-version=2025-04-01-preview")],
)
def test_azure_relays_responses_through_both_interfaces(version: str | None, path: str) -> None:
    named = {} if version is None else {"api_version": version}
    fields = {"model": "acme/gpt", "input": "Hi", "a_field_of_next_year": 1}
    native = NativeBody(NativeFormat.RESPONSES, fields)
    built = call(clouds.azure(**named), "my-codex", stream=True)
    request = azure.native.build(replace(built, native=native))
    assert request.url == f"https://contoso.openai.azure.com/openai/{path}"
    assert request.headers["api-key"] == clouds.AZURE_KEY
    assert isinstance(request.body, bytes)
    assert json.loads(request.body) == {
        **fields,
        "model": "my-codex",
        "store": False,
        "stream": True,
    }


@pytest.mark.parametrize("name", ["openai", "azure", "anthropic", "vertex", "bedrock", "gemini"])
def test_responses_are_spoken_by_two_dialects(name: str) -> None:
    for native_format in NativeFormat:
        found = dialects.get_native(name, Capabilities(native_format))
        is_spoken = name in ("openai", "azure") and "responses" in native_format
        assert isinstance(found, NativeResponses) is is_spoken
        is_alone = is_spoken and native_format is NativeFormat.RESPONSES
        assert dialects.lacks_chat(name, Capabilities(native_format)) is is_alone


def test_azure_serves_text_completions_through_both_interfaces() -> None:
    fields = {"prompt": "hi"}
    text = {"operation": Operation.TEXT, "fields": fields}
    v1 = azure.build(call(clouds.azure(), "old", **text))
    assert v1.url == "https://contoso.openai.azure.com/openai/v1/completions"
    assert v1.body == b'{"prompt":"hi","model":"old","stream":false}'
    dated = azure.build(call(clouds.azure(api_version="2024-10-21"), "old", **text))
    assert dated.url == (
        "https://contoso.openai.azure.com/openai/deployments/old/completions?api-version=2024-10-21"
    )


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("a/b", "a%2Fb"),
        ("a?b=c#d", "a%3Fb%3Dc%23d"),
        ("ü", "%C3%BC"),
        ("a b", "a%20b"),
        ("%2e", "%252e"),
    ],
)
def test_azure_quotes_the_name_of_a_deployment(name: str, segment: str) -> None:
    url = azure.build(call(clouds.azure(api_version="2024-10-21"), name)).url
    assert url == (
        f"https://contoso.openai.azure.com/openai/deployments/{segment}/chat/completions"
        "?api-version=2024-10-21"
    )
    assert parse_target(url, policy=EgressPolicy()).host == clouds.AZURE_HOST


@pytest.mark.parametrize("name", [".", ".."])
def test_a_deployment_named_with_dots_is_refused(name: str) -> None:
    url = azure.build(call(clouds.azure(api_version="2024-10-21"), name)).url
    with pytest.raises(InvalidURL):
        parse_target(url, policy=EgressPolicy())


def test_bedrock_sends_an_api_key_as_bearer_token() -> None:
    assert bedrock.build(call(clouds.bedrock_key(), "openai.gpt-oss-20b-1:0")) == OutboundRequest(
        method="POST",
        url="https://bedrock-runtime.us-east-1.amazonaws.com"
        "/model/openai.gpt-oss-20b-1%3A0/converse",
        headers={"Authorization": f"Bearer {clouds.BEDROCK_KEY}", **JSON},
        body=CONVERSE_BODY,
    )


def test_bedrock_signs_a_request_with_its_time() -> None:
    request = bedrock.build(call(clouds.bedrock()), clock=clock)
    assert request == OutboundRequest(
        method="POST",
        url="https://bedrock-runtime.us-east-1.amazonaws.com/model/some-model/converse",
        headers={
            **JSON,
            "X-Amz-Date": STAMP,
            "Authorization": "AWS4-HMAC-SHA256 "
            "Credential=AKIAIOSFODNN7EXAMPLE/20260102/us-east-1/bedrock/aws4_request, "
            "SignedHeaders=content-type;host;x-amz-date, "
            "Signature=d14e7af267685741f96d84289b18e45842816fb1f80441c832cfeb934f90ef7b",
        },
        body=CONVERSE_BODY,
    )


@pytest.mark.parametrize("model", ["openai.gpt-oss-20b-1:0", ARN])
@pytest.mark.parametrize("token", [None, clouds.SESSION_TOKEN])
@pytest.mark.parametrize("region", ["us-east-1", "cn-north-1"])
@pytest.mark.parametrize("stream", [False, True])
def test_bedrock_signature_agrees_with_botocore(
    monkeypatch: pytest.MonkeyPatch, token: str | None, region: str, stream: bool, model: str
) -> None:
    members = clouds.bedrock(session_token=token, region=region)
    request = bedrock.build(call(members, model, stream=stream), clock=clock)
    host, path = request.url.removeprefix("https://").split("/", 1)
    sent = {name.lower(): value for name, value in request.headers.items()} | {"host": host}
    assert sent.get("x-amz-security-token") == token
    assert sent["authorization"] == clouds.authorization(
        f"/{path}", sent, request.body, clouds.signed_headers(token is not None), region=region
    )

    moment = datetime.datetime.fromtimestamp(NOW, datetime.UTC).replace(tzinfo=None)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: moment)
    login = ReadOnlyCredentials(clouds.ACCESS_KEY_ID, clouds.SECRET_ACCESS_KEY, token)
    by_library = AWSRequest("POST", request.url, {"Content-Type": "application/json"}, request.body)
    SigV4Auth(login, "bedrock", region).add_auth(by_library)
    assert dict(by_library.headers.items()) == {
        name: value for name, value in request.headers.items() if name != "Accept"
    }


def test_bedrock_signs_with_the_present_time_by_default() -> None:
    request = bedrock.build(call(clouds.bedrock()))
    stamped = datetime.datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%S%z")
    now = datetime.datetime.now(datetime.UTC)
    assert abs((now - stamped).total_seconds()) < 60


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("us-central1", "us-central1-aiplatform.googleapis.com"),
        ("global", "aiplatform.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
    ],
)
def test_vertex_sends_a_token_of_the_service_account(location: str, host: str) -> None:
    request = vertex.build(
        call(clouds.vertex(location=location), "google/gemini-2.5-flash"), clock=clock
    )
    token = request.headers["Authorization"].removeprefix("Bearer ")
    assert request == OutboundRequest(
        method="POST",
        url=f"https://{host}/v1/projects/example-project-1/locations/{location}"
        "/endpoints/openapi/chat/completions",
        headers={"Authorization": f"Bearer {token}", **JSON},
        body=BODY % b"google/gemini-2.5-flash",
    )
    issued = 1_767_321_000
    assert clouds.decode(token) == (
        {"typ": "JWT", "alg": "RS256", "kid": clouds.KEY_ID},
        {
            "iss": clouds.ACCOUNT,
            "sub": clouds.ACCOUNT,
            "scope": "https://www.googleapis.com/auth/cloud-platform",
            "iat": issued,
            "exp": issued + 3600,
        },
    )


CLAUDE_BODY = (
    b'"max_tokens":4096,"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]%s}'
)


def test_claude_on_vertex_has_its_own_url_and_body() -> None:
    request = vertex_claude.build(call(clouds.vertex(), "claude-haiku-4-5@20251001"), clock=clock)
    by_openai = vertex.build(call(clouds.vertex()), clock=clock)
    assert request == OutboundRequest(
        method="POST",
        url="https://us-central1-aiplatform.googleapis.com/v1/projects/example-project-1"
        "/locations/us-central1/publishers/anthropic/models/claude-haiku-4-5@20251001:rawPredict",
        headers={"Authorization": by_openai.headers["Authorization"], **JSON},
        body=b'{"anthropic_version":"vertex-2023-10-16",' + CLAUDE_BODY % b"",
    )
    streamed = vertex_claude.build(call(clouds.vertex(), "claude-opus-5", stream=True))
    assert streamed.url.endswith("/publishers/anthropic/models/claude-opus-5:streamRawPredict")
    assert streamed.headers["Accept"] == "text/event-stream"
    assert streamed.body == (
        b'{"anthropic_version":"vertex-2023-10-16",' + CLAUDE_BODY % b',"stream":true'
    )


def test_claude_on_vertex_refuses_image_urls_and_marks_the_last_part() -> None:
    def asked(url: str, role: str = "user") -> Call:
        part = {"type": "image_url", "image_url": {"url": url}}
        mark = {"type": "ephemeral"}
        said = [{"role": role, "content": [part, {"type": "text", "text": "?"}]}]
        fields = {"messages": said, "cache_control": mark}
        return call(clouds.vertex(), "claude-opus-5", fields=fields)

    sent = json.loads(vertex_claude.build(asked("data:image/png;base64,AAAA")).body)
    assert "cache_control" not in sent
    mark = {"cache_control": {"type": "ephemeral"}}
    [image, text] = sent["messages"][0]["content"]
    assert (text, image.get("cache_control")) == ({"type": "text", "text": "?", **mark}, None)
    for role in ("user", "tool"):
        with pytest.raises(
            Untranslatable, match=r"^Vertex does not accept URLs for image parts\.$"
        ):
            vertex_claude.build(asked("https://a.example/b.png", role))


def test_claude_on_foundry_has_its_own_url() -> None:
    # Claude ignores the API version of the credential.
    for members in (clouds.foundry(), clouds.foundry(api_version="2024-10-21")):
        assert azure_claude.build(call(members, "claude-opus-5")) == OutboundRequest(
            method="POST",
            url="https://contoso.services.ai.azure.com/anthropic/v1/messages",
            headers={"x-api-key": clouds.AZURE_KEY, "anthropic-version": "2023-06-01", **JSON},
            body=b'{"model":"claude-opus-5",' + CLAUDE_BODY % b"",
        )


def test_claude_on_azure_requires_a_foundry_host() -> None:
    secret = Secret(json.dumps(clouds.azure()))
    with pytest.raises(InvalidCredential):
        azure_claude.host(None, secret)
    with pytest.raises(Untranslatable):
        azure_claude.build(call(clouds.azure(), "claude-opus-5"))


@pytest.mark.parametrize(
    ("name", "native_format", "module"),
    [
        ("azure", NativeFormat.ANTHROPIC, azure_claude),
        ("azure", NativeFormat.OPENAI, azure),
        ("vertex", NativeFormat.ANTHROPIC, vertex_claude),
        ("vertex", NativeFormat.OPENAI, vertex),
        ("bedrock", NativeFormat.ANTHROPIC, bedrock),
        ("anthropic", NativeFormat.ANTHROPIC, anthropic),
        ("openai", NativeFormat.ANTHROPIC, openai),
        ("vertex_claude", NativeFormat.ANTHROPIC, None),
    ],
)
def test_azure_and_vertex_use_another_dialect_for_claude(
    name: str, native_format: NativeFormat, module: Any
) -> None:
    assert dialects.get(name, Capabilities(native_format=native_format)) is module


@pytest.mark.parametrize("kind", ["anthropic", "gemini", "bedrock"])
def test_the_name_of_a_model_decides_nothing(kind: str) -> None:
    asked: dict[str, Any] = {
        "tools": [TOOL], "tool_choice": "auto", "reasoning_effort": "high", "max_tokens": 9000,
        "temperature": 0.3, "top_p": 0.9,
    }  # fmt: skip
    for capabilities in (
        UNDESCRIBED,
        Capabilities(NativeFormat.ANTHROPIC, ThinkingControl.BUDGET, combines_sampling=True),
        Capabilities(NativeFormat.ANTHROPIC, thinks_between_tools=True),
    ):
        bodies = [
            {**body(kind, model, capabilities=capabilities, **asked), "model": ""}
            for model in ("claude-3-7-sonnet", "claude-sonnet-5-5", "gemini-2.5-pro", "my-model")
        ]
        assert bodies == [bodies[0]] * len(bodies)


def test_claude_on_clouds_serves_only_chats_with_the_parsers_of_anthropic() -> None:
    for module in (azure_claude, vertex_claude):
        assert module.operations == {Operation.CHAT}
        assert module.parse_reply is anthropic.parse_reply
        assert module.stream_parser is anthropic.stream_parser


def test_vertex_reuses_a_token_until_ten_minutes_before_its_end() -> None:
    def token(at: float) -> str:
        return vertex.build(call(clouds.vertex()), clock=lambda: at).headers["Authorization"]

    start = 1_767_321_000
    assert token(start) == token(start + 2999.9)
    later = token(start + 3000)
    assert later != token(start)
    assert clouds.decode(later.removeprefix("Bearer "))[1]["iat"] == start + 3000


def test_vertex_does_not_share_tokens_between_credentials() -> None:
    other = clouds.account(private_key=clouds.pem(clouds.private_key(1)))
    requests = [
        vertex.build(call(members), clock=clock)
        for members in (clouds.vertex(), clouds.vertex(service_account=other))
    ]
    assert requests[0].headers["Authorization"] != requests[1].headers["Authorization"]


@pytest.mark.parametrize("name", ["azure", "vertex"])
def test_azure_and_vertex_use_the_parsers_of_openai(name: str) -> None:
    dialect = dialect_of(name)
    assert dialect.parse_reply is openai.parse_reply
    assert dialect.stream_parser is openai.stream_parser
    assert dialect.names_deployments


@pytest.mark.parametrize("model", ["us.amazon.nova-lite-v1:0", ARN])
def test_bedrock_path_and_body_agree_with_botocore(model: str) -> None:
    session = botocore.session.get_session()
    service = session.get_service_model("bedrock-runtime")
    for stream, operation in ((False, "Converse"), (True, "ConverseStream")):
        request = bedrock.build(call(clouds.bedrock_key(), model, stream=stream))
        body = {"modelId": model, **json.loads(request.body)}
        shape = service.operation_model(operation)
        made = create_serializer("rest-json").serialize_to_request(body, shape)
        assert request.url == f"https://{clouds.BEDROCK_HOST}{made['url_path']}"
        assert json.loads(request.body) == json.loads(made["body"])


@pytest.mark.parametrize("model", ["us.anthropic.claude-opus-4-8-v1:0", ARN])
def test_bedrock_invokes_claude_where_botocore_does(model: str) -> None:
    service = botocore.session.get_session().get_service_model("bedrock-runtime")
    native = NativeBody(NativeFormat.ANTHROPIC, {"max_tokens": Raw(b"5")})
    for stream, operation in ((False, "InvokeModel"), (True, "InvokeModelWithResponseStream")):
        asked = structs.replace(
            call(clouds.bedrock_key(), model, stream=stream), native=native, fields={}
        )
        request = bedrock.native.build(asked)
        shape = service.operation_model(operation)
        members = {"modelId": model, "body": request.body}
        made = create_serializer("rest-json").serialize_to_request(members, shape)
        assert request.url == f"https://{clouds.BEDROCK_HOST}{made['url_path']}"
        assert request.body == b'{"anthropic_version":"bedrock-2023-05-31","max_tokens":5}'


def test_azure_is_the_only_cloud_that_serves_text_completions() -> None:
    served = [
        name
        for name in ("azure", "bedrock", "vertex")
        if Operation.TEXT in dialect_of(name).operations
    ]
    assert served == ["azure"]


@pytest.mark.parametrize(
    ("dialect", "members"),
    [
        ("azure", clouds.azure()),
        ("bedrock", clouds.bedrock(session_token=clouds.SESSION_TOKEN)),
        ("bedrock", clouds.bedrock_key()),
        ("vertex", clouds.vertex()),
    ],
)
def test_host_returns_the_host_of_the_request(dialect: str, members: dict[str, Any]) -> None:
    speaker = dialect_of(dialect)
    request = speaker.build(call(members))
    base = parse_target(request.url, policy=EgressPolicy())
    assert (base.scheme, base.port) == ("https", 443)
    assert speaker.host(None, Secret(json.dumps(members))) == base.host
