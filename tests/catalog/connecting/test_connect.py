"""``connect``: a first attempt that works, and those that fail as people fail."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from catalog.connecting.asking import explain_unknown_name
from catalog.connecting.servers import guess_output
from catalog.models import LanguageModel, ModelEndpoint, Provider
from config.credentials import Secret
from config.egress import EgressPolicy
from config.egress.addresses import PinnedHost, Proxy
from tests.support import factories
from tests.support.database import snapshots
from tests.support.operators import commands
from tests.support.upstreams.listing import OLLAMA, VLLM, answer_models, completion, send
from tests.support.upstreams.tls import (
    Authority,
    Server,
    answering,
    answering_anything,
    sending,
    serving,
)

KEY = "sk-of-the-server-0123456789"


@pytest.fixture(autouse=True)
def _nothing_is_allowed(db: None, settings: Any) -> None:
    settings.EGRESS_POLICY = EgressPolicy(connect_timeout=5)


@pytest.fixture
def ollama() -> Iterator[Server]:
    with serving(answer_models(OLLAMA)) as server:
        yield server


connect = partial(commands.run_json, "connect")


def refuse(*arguments: str) -> str:
    """Runs a command that must fail and change nothing; returns its message."""
    before = snapshots.everything()
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("connect", *arguments, "--json", stdout=out, stderr=io.StringIO())
    assert (caught.value.returncode, out.getvalue()) == (1, "")
    assert snapshots.everything() == before
    return str(caught.value)


def url_of(server: Server, path: str = "/v1", scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.port}{path}"


def test_connect_stores_a_server_with_all_its_models(ollama: Server) -> None:
    found, notes = connect(url_of(ollama), "--allow")
    milliseconds = found["test"].pop("milliseconds")
    provider = Provider.objects.get()
    endpoints = ModelEndpoint.objects.order_by("upstream_model_id").select_related("model", "price")
    assert isinstance(milliseconds, int)
    assert found == {
        "provider": "ollama",
        "models": ["ollama/llama3.2-3b", "ollama/nomic-embed-text-latest"],
        "endpoints": [str(endpoint.pk) for endpoint in endpoints],
        "network_allowed": "127.0.0.1/32",
        "test": {"status": 200, "text": "White."},
        "curl": (
            "curl http://127.0.0.1:8000/api/v1/chat/completions -H "
            '"Authorization: Bearer $CAUSEWAY_API_KEY" -H "Content-Type: application/json" -d '
            """'{"model": "ollama/llama3.2-3b", "messages": """
            """[{"role": "user", "content": "Hello"}]}'"""
        ),
    }
    assert notes == "The models cost nothing until a price is set in the console.\n"
    assert (provider.name, provider.base_url, provider.is_keyless, provider.allowed_networks) == (
        f"Ollama at 127.0.0.1:{ollama.port}",
        url_of(ollama),
        True,
        ["127.0.0.1/32"],
    )
    assert [(each.upstream_model_id, each.model.output_modalities) for each in endpoints] == [
        ("llama3.2:3b", ["text"]),
        ("nomic-embed-text:latest", ["embeddings"]),
    ]
    assert {(each.price.prompt, each.price.completion) for each in endpoints} == {(0, 0)}
    # The list does not say whether the models see pictures.
    assert [(each.model.input_modalities, each.model.modality) for each in endpoints] == [
        ([], None), ([], None),
    ]  # fmt: skip


def test_connect_again_adds_what_is_new_and_keeps_the_rest(ollama: Server) -> None:
    first, _ = connect(url_of(ollama), "--allow", "--models", "llama3.2:3b")
    assert first["models"] == ["ollama/llama3.2-3b"]
    LanguageModel.objects.update(name="Our llama")
    Provider.objects.update(name="Our Ollama")
    # The network stays allowed, so the option is not needed any more.
    again, _ = connect(url_of(ollama))
    assert again["models"] == ["ollama/llama3.2-3b", "ollama/nomic-embed-text-latest"]
    assert again["network_allowed"] == "127.0.0.1/32"
    assert Provider.objects.get().name == "Our Ollama"
    assert LanguageModel.objects.get(slug="ollama/llama3.2-3b").name == "Our llama"
    before = snapshots.everything()
    third, _ = connect(url_of(ollama))
    assert third["endpoints"] == again["endpoints"]
    assert snapshots.everything() == before


def test_connect_names_no_model_as_one_that_the_catalogue_has() -> None:
    factories.make_model("server/llama", canonical_slug="acme/llama-2026-01-01")
    factories.make_model("acme/phi", canonical_slug="server/phi")
    factories.make_model("server/qwen", canonical_slug="server/qwen", is_listed=False)
    before = snapshots.everything()["catalog.LanguageModel"]
    rows = [{"id": name} for name in ("llama", "phi", "qwen", "new")]
    with serving(answer_models(rows)) as server:
        found, _ = connect(url_of(server), "--allow")
        assert found["models"] == ["server/llama-2", "server/new", "server/phi-2", "server/qwen-2"]
        after = snapshots.everything()
        assert set(before) - set(after["catalog.LanguageModel"]) == set()
        # Again: the new names stay.
        assert connect(url_of(server))[0]["models"] == found["models"]
        assert snapshots.everything() == after


def test_a_server_gets_no_name_of_a_bundled_provider(settings: Any) -> None:
    """``connect mistral`` would send the key of Mistral to it."""
    settings.EGRESS_POLICY = EgressPolicy(
        connect_timeout=5,
        allowed_networks=(ip_network("127.0.0.1/32"),),
        hosts={"mistral.lan": PinnedHost("127.0.0.1", None)},
    )
    with serving(answer_models([{"id": "small"}])) as server:
        found, _ = connect(f"http://mistral.lan:{server.port}/v1")
    assert (found["provider"], found["models"]) == ("mistral-2", ["mistral-2/small"])


def test_connect_leaves_out_what_an_operator_took_out(ollama: Server) -> None:
    connect(url_of(ollama), "--allow")
    ModelEndpoint.objects.get(upstream_model_id="llama3.2:3b").delist()
    found, _ = connect(url_of(ollama))
    assert found["models"] == ["ollama/nomic-embed-text-latest"]
    assert ModelEndpoint.objects.get(upstream_model_id="llama3.2:3b").is_listed is False


def test_a_dry_run_asks_and_stores_nothing(ollama: Server) -> None:
    before = snapshots.everything()
    found, _ = connect(url_of(ollama), "--allow", "--dry-run")
    assert (found["provider"], found["endpoints"]) == ("ollama", [])
    assert found["models"] == ["ollama/llama3.2-3b", "ollama/nomic-embed-text-latest"]
    assert snapshots.everything() == before
    assert len(ollama.requests) == 2


def test_a_missing_v1_and_a_pasted_operation_are_mended(ollama: Server) -> None:
    found, notes = connect(url_of(ollama, ""), "--allow")
    assert found["test"]["status"] == 200
    assert f"The base URL is {url_of(ollama)}: the server has its list there." in notes
    assert Provider.objects.get().base_url == url_of(ollama)
    for path in ("/v1/chat/completions", "/v1/models/", "/v1/"):
        connect(url_of(ollama, path))
    connect(f"127.0.0.1:{ollama.port}")
    assert Provider.objects.count() == 1


def test_an_address_that_is_not_public_needs_to_be_allowed(ollama: Server) -> None:
    assert refuse(url_of(ollama)) == (
        "127.0.0.1 is not a public address (loopback), so it is called only if you allow it: run "
        "the command again with --allow: it allows 127.0.0.1/32 for this alone."
    )
    assert ollama.connections == 0


def test_an_address_that_is_never_called_cannot_be_allowed() -> None:
    for host in ("0.0.0.0", "[::]"):
        assert refuse(f"http://{host}:11434/v1", "--allow") == (
            f"{host} is where a server listens, on all of its addresses, and not where it is "
            "called. Use 127.0.0.1 on the same machine, else the address of its own."
        )
    assert refuse("http://255.255.255.255:11434/v1", "--allow").startswith(
        "The address or the port of the URL is not allowed. Write it like "
    )


def test_a_wrong_port_names_the_usual_ones() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert refuse(f"http://127.0.0.1:{port}/v1", "--allow") == (
            f"Nothing accepts connections at 127.0.0.1:{port}. Is the server running, does it "
            "listen on this address and not on its own loopback alone, and is the port right? "
            "Ollama listens on 11434, vLLM on 8000, llama.cpp's server on 8080, LM Studio on 1234. "
            "In a container, this is the container itself; its host is host.docker.internal."
        )


def test_a_name_without_an_address_is_told() -> None:
    message = refuse("http://gpu.invalid:8000/v1", "--allow")
    assert message.startswith("The name gpu.invalid has no address here. Check its spelling")


def test_the_host_of_a_container_is_given_its_name() -> None:
    assert explain_unknown_name("host.docker.internal") == (
        "The name host.docker.internal has no address here. Start the container with --add-host "
        "host.docker.internal:host-gateway."
    )


@pytest.mark.parametrize(
    ("origins", "expected"),
    [
        (["https://llm.example.com", "https://b.example"], "https://llm.example.com"),
        (["https://*.example.com", "https://b.example/"], "https://b.example"),
        (["https://*.example.com"], "http://127.0.0.1:8000"),
    ],
)
def test_the_call_that_works_is_sent_to_the_public_address(
    ollama: Server, settings: Any, origins: list[str], expected: str
) -> None:
    settings.CSRF_TRUSTED_ORIGINS = origins
    found, _ = connect(url_of(ollama), "--allow")
    assert found["curl"].startswith(f"curl {expected}/api/v1/chat/completions -H ")


def test_a_text_that_is_no_url_is_told() -> None:
    assert refuse("http://gpu lan/v1").endswith(
        "https://llm.example.com/v1, with the server's own address."
    )
    assert refuse("htp://gpu.lan/v1").startswith("The URL must begin with http:// or https://. ")
    assert refuse("olama").startswith("There is no provider 'olama'. Name one of amazon-bedrock, ")


def test_a_server_with_a_key_needs_it_and_the_right_one(tmp_path: Path) -> None:
    with serving(answer_models(VLLM, key=KEY)) as server:
        assert refuse(url_of(server), "--allow") == (
            "The server wants a key for the list of its models (401): give it with --key-file "
            "FILE. It says: Invalid API Key"
        )
        assert refuse(url_of(server), "--allow", "--key", "sk-wrong-0123456789") == (
            "The server refuses the key for the list of its models (401). Check that it is whole, "
            "of this server, and not expired. If it may not list what the server has, name its "
            "models with --models A,B. It says: Invalid API Key"
        )
        file = tmp_path / "key"
        file.write_text(f"\ufeff{KEY}\n", "utf-8")  # as an editor of Windows saves it
        found, _ = connect(url_of(server), "--allow", "--key-file", str(file))
        provider = Provider.objects.get()
        assert (found["provider"], found["models"]) == ("vllm", ["vllm/qwen3-8b"])
        assert provider.reveal_credential() == Secret(KEY)
        assert ModelEndpoint.objects.get().context_length == 40_960
        # A stored key is used again.
        assert connect(url_of(server))[0]["endpoints"] == found["endpoints"]


def test_a_certificate_of_an_unknown_authority_needs_its_file(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = authority.server_context("127.0.0.1")
    with serving(answer_models(VLLM), context) as server:
        url = url_of(server, scheme="https")
        assert refuse(url, "--allow") == (
            f"The certificate of 127.0.0.1:{server.port} is signed by an authority that is not "
            "known here: give its certificate, or that of its authority, with --ca FILE."
        )
        other = tmp_path / "other.pem"
        other.write_text("no certificate")
        assert refuse(url, "--allow", "--ca", str(other)).startswith(
            "The file of the authority: Must be certificates in PEM"
        )
        (tmp_path / "other").mkdir()
        # An authority that was created again has the name of the former one.
        assert refuse(url, "--allow", "--ca", Authority(tmp_path / "other").bundle) == (
            f"The certificate of 127.0.0.1:{server.port} is signed by an authority that is not "
            "known here, and not by the one that is given: give its certificate, or that of its "
            "authority, with --ca FILE."
        )
        assert connect(url, "--allow", "--ca", authority.bundle)[0]["provider"] == "vllm"
        pem = Path(authority.bundle).read_text().strip()
        assert Provider.objects.get().ca_certificates == pem
        assert connect(url)[0]["test"]["status"] == 200


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ({"expired": True}, "has expired, or this machine's clock is wrong."),
        (
            {"self_signed": True},
            "is signed by an authority that is not known here, and not by the one that is given: ",
        ),
    ],
    ids=["expired", "self-signed"],
)
def test_other_faults_of_a_certificate_are_told(
    tmp_path: Path, context: dict[str, bool], expected: str
) -> None:
    authority = Authority(tmp_path)
    with serving(answer_models(VLLM), authority.server_context("127.0.0.1", **context)) as server:
        message = refuse(url_of(server, scheme="https"), "--allow", "--ca", authority.bundle)
        assert message.startswith(f"The certificate of 127.0.0.1:{server.port} {expected}")


def test_a_certificate_of_another_name_is_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with serving(answer_models(VLLM), authority.server_context("gpu.lan")) as server:
        message = refuse(url_of(server, scheme="https"), "--allow", "--ca", authority.bundle)
        assert message.startswith(
            f"The certificate of 127.0.0.1:{server.port} is for another name. Use a name"
        )


def test_the_wrong_scheme_is_told(tmp_path: Path) -> None:
    with answering_anything(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert refuse(f"https://127.0.0.1:{port}/v1", "--allow") == (
            f"The server at 127.0.0.1:{port} speaks plain HTTP. Use http://127.0.0.1:{port}/v1."
        )
    with serving(answer_models(VLLM), Authority(tmp_path).server_context("127.0.0.1")) as server:
        assert refuse(url_of(server), "--allow") == (
            f"What answers at 127.0.0.1:{server.port} does not speak plain HTTP. Does it want TLS? "
            f"Try {url_of(server, scheme='https')}."
        )


def test_something_else_at_the_port_is_told() -> None:
    with serving(sending(b"220 mail.example.com ESMTP\r\n")) as server:
        assert "does not speak plain HTTP" in refuse(url_of(server), "--allow")
    with serving(answering(b"<html>", headers=("Content-Type: text/html",))) as server:
        base = url_of(server, "")
        assert refuse(base, "--allow") == (
            f"The server answers, but has no list of models at {base}/v1/models and {base}/models. "
            "Is it OpenAI-compatible, and is the path right? It often ends in /v1. If the server "
            "has no list, name its models with --models A,B."
        )
    with serving(answering(b"", "302 Found", headers=("Location: /login",))) as server:
        assert "redirects are never followed" in refuse(url_of(server), "--allow")
    with serving(answering(b'{"error": "Loading model"}', "503 X")) as server:
        assert refuse(url_of(server), "--allow") == (
            "The server is not ready for the list of its models (503). It may still load its "
            "model: try again in a minute. It says: Loading model"
        )


def drip(line: socket.socket, body: bytes) -> bool:
    """Answers with the body after 400 spaces, each of which takes 50 ms."""
    line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (400 + len(body)))
    line.settimeout(0.05)
    for _ in range(400):
        line.sendall(b" ")
        try:
            line.recv(1)
        except TimeoutError:
            continue
        # The client has left.
        return False
    line.sendall(body)
    return False


LATE = (
    "127.0.0.1:{} accepts a connection and does not answer in time. Is the port right, and is the "
    "server busy with other requests?"
)


def test_a_list_that_drips_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catalog.connecting.asking._LIST_SECONDS", 4.0)
    body = json.dumps({"data": [{"id": "mine"}]}).encode()
    with serving(lambda line, head, received: drip(line, body)) as server:
        assert refuse(url_of(server), "--allow") == LATE.format(server.port)


def test_an_answer_that_drips_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catalog.connecting.connect._TRY_SECONDS", 4.0)
    script = answer_models([{"id": "a"}, {"id": "b"}])

    def drip_chats(line: socket.socket, head: bytes, received: bytes) -> bool:
        if head.startswith(b"GET "):
            return script(line, head, received)
        return drip(line, json.dumps(completion("a")).encode())

    with serving(drip_chats) as server:
        assert refuse(url_of(server), "--allow") == LATE.format(server.port)
        # Another model of the same server is not tried.
        assert [json.loads(body)["model"] for _, body in server.requests if body] == ["a"]


def test_a_path_of_another_format_is_not_taken() -> None:
    """llama.cpp's server lists its models without ``/v1`` too, and completes in its own format."""
    script = answer_models(OLLAMA)

    def list_both(line: socket.socket, head: bytes, received: bytes) -> bool:
        return script(line, head.replace(b" /models", b" /v1/models"), received)

    with serving(list_both) as server:
        connect(url_of(server, ""), "--allow")
        assert Provider.objects.get().base_url == url_of(server)


def test_a_redirect_of_the_guessed_path_does_not_end_the_search() -> None:
    script = answer_models([{"id": "mine"}], prefix="/api")

    def redirect(line: socket.socket, head: bytes, received: bytes) -> bool:
        if b"/v1/models " not in head:
            return script(line, head, received)
        line.sendall(b"HTTP/1.1 307 X\r\nLocation: /api/v1/models/\r\nContent-Length: 0\r\n\r\n")
        return True

    with serving(redirect) as server:
        # Nothing is there either, so the redirect is what tells most.
        assert "redirects are never followed" in refuse(url_of(server, "/none"), "--allow")
        assert connect(url_of(server, "/api"), "--allow")[0]["models"] == ["server/mine"]
        assert Provider.objects.get().base_url == url_of(server, "/api")


def test_the_folders_of_a_file_are_no_part_of_a_name() -> None:
    with serving(
        answer_models([{"id": "/srv/models/tiny.gguf", "owned_by": "llamacpp"}])
    ) as server:
        assert connect(url_of(server), "--allow")[0]["models"] == ["llama-cpp/tiny"]
    name = LanguageModel.objects.get().name
    assert name == f"tiny.gguf (llama.cpp at 127.0.0.1:{server.port})"


BEHIND_A_PROXY = (
    "A proxy in between has no answer to the list of its models ({}). Is the server behind it "
    "running? Or call the server at its own address."
)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (407, BEHIND_A_PROXY.format(407)),
        (502, BEHIND_A_PROXY.format(502)),
        (500, "The server refuses the list of its models (500). Its own log says why."),
    ],
)
def test_each_status_says_what_to_do(status: int, expected: str) -> None:
    with serving(answering(b"", f"{status} X")) as server:
        assert refuse(url_of(server), "--allow") == expected
        assert refuse(url_of(server), "--allow", "--models", "mine") == expected


def test_a_key_that_is_none_is_told(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("\n")
    assert refuse("openai", "--key-file", str(file)) == (
        "The key is empty: is the variable set, and the file written?"
    )
    assert refuse("http://127.0.0.1:9/v1", "--key", "ollama") == (
        "The key: Must be a bare key of 8 to 4096 visible ASCII characters, or one JSON object. A "
        "server that asks for none is connected without."
    )


def test_an_address_of_ipv6_is_written_in_brackets() -> None:
    with socket.socket(socket.AF_INET6) as unused:
        unused.bind(("::1", 0))
        port = unused.getsockname()[1]
        message = refuse(f"http://[::1]:{port}/v1", "--allow")
    assert message.startswith(f"Nothing accepts connections at [::1]:{port}. Is the server running")


def test_a_proxy_that_refuses_is_told(settings: Any) -> None:
    with answering_anything(b"HTTP/1.1 407 Login\r\n\r\n") as port:
        settings.EGRESS_POLICY = EgressPolicy(
            connect_timeout=5,
            proxy=Proxy("127.0.0.1", port),
            hosts={"api.openai.com": PinnedHost("93.184.216.34", None)},
        )
        assert refuse("openai", "--key", KEY) == (
            "api.openai.com:443 is called through EGRESS_PROXY_URL, and the proxy answered 407. "
            "Does this proxy want a login (USER:PASSWORD@), and does it let CONNECT pass to an "
            "address?"
        )


def test_a_provider_that_is_not_reached_names_the_proxy(settings: Any) -> None:
    # Nobody can have this port of loopback: that it is public is the pin's word alone.
    settings.EGRESS_POLICY = EgressPolicy(
        connect_timeout=5,
        allowed_networks=(ip_network("127.0.0.1/32"),),
        hosts={"api.openai.com": PinnedHost("127.0.0.1", 1)},
    )
    assert refuse("openai", "--key", KEY) == (
        "api.openai.com:443 accepts no connection. Does this machine reach the internet? Where a "
        "proxy is in between, set EGRESS_PROXY_URL, for serve and work too: HTTPS_PROXY is not "
        "read."
    )


def test_a_missing_model_names_those_that_are_there(ollama: Server) -> None:
    assert refuse(url_of(ollama), "--allow", "--models", "llama4") == (
        "The server has no model 'llama4'. It has: llama3.2:3b, nomic-embed-text:latest."
    )
    with serving(answer_models([])) as empty:
        assert refuse(url_of(empty), "--allow") == (
            "The server lists no models. Load one there first; for Ollama: ollama pull MODEL. If "
            "it loads them when they are called, name its models with --models A,B."
        )


def test_a_model_that_does_not_answer_is_no_connection() -> None:
    error = {"error": {"message": "model not loaded", "code": "model_not_found"}}
    rows = [{"id": name} for name in ("a", "b", "c", "d")]
    with serving(answer_models(rows, chats=dict.fromkeys("abc", (404, error)))) as server:
        assert refuse(url_of(server), "--allow") == (
            "The server does not know a test request to the model 'a' (404). Is the model loaded "
            "there? It says: model not loaded"
        )
    # Of a list some may be dead: one that answers is enough.
    with serving(answer_models(rows, chats={"a": (404, error)})) as server:
        found, _ = connect(url_of(server), "--allow")
        assert len(found["models"]) == 4
        assert found["curl"].count('"server/b"') == 1


@pytest.mark.parametrize(
    ("name", "output"),
    [
        *(
            (name, "embeddings")
            for name in (
                "all-minilm:latest", "all-minilm:22m", "bge-m3:567m", "mxbai-embed-large:335m",
                "paraphrase-multilingual:278m", "sentence-transformers/all-mpnet-base-v2",
                "multi-qa-mpnet-base-dot-v1", "LaBSE", "distiluse-base-multilingual-cased-v2",
                "msmarco-distilbert-base-v4", "sentence-t5-base", "all-distilroberta-v1",
                "hkunlp/instructor-large", "WhereIsAI/UAE-Large-V1", "moka-ai/m3e-base",
            )
        ),
        ("cross-encoder/ms-marco-MiniLM-L6-v2", "rerank"),
        ("bge-reranker-v2-m3:latest", "rerank"),
        ("kokoro:latest", "speech"),
        *((name, "text") for name in ("llama3.2:3b", "minimax-m2", "mistral-large", "gte2:7b")),
    ],
)  # fmt: skip
def test_an_output_is_guessed_from_the_name(name: str, output: str) -> None:
    assert guess_output(name) == output


@pytest.mark.parametrize("status", [400, 404, 422, 501])
def test_a_model_that_refuses_a_chat_is_asked_for_vectors(status: int) -> None:
    refusal = {"error": {"message": "this model does not support chat"}}
    script = answer_models(
        [{"id": "snow"}, {"id": "rain"}], chats={"snow": (status, refusal)}, embeds=["snow"]
    )
    with serving(script) as server:
        found, _ = connect(url_of(server), "--allow")
    models = LanguageModel.objects.values_list("slug", "output_modalities")
    assert dict(models) == {"server/snow": ["embeddings"], "server/rain": ["text"]}
    assert (found["test"]["status"], found["test"]["text"]) == (200, "")
    assert found["curl"].startswith("curl http://127.0.0.1:8000/api/v1/embeddings -H ")
    assert """-d '{"model": "server/snow", "input": "snow"}'""" in found["curl"]


@pytest.mark.parametrize(
    ("status", "stated"),
    [(500, {}), (404, {"architecture": {"output_modalities": ["text"]}})],
    ids=["another fault", "a stated output"],
)
def test_nothing_else_is_asked_for_vectors(status: int, stated: dict[str, Any]) -> None:
    script = answer_models(
        [{"id": "snow", **stated}], chats={"snow": (status, {})}, embeds=["snow"]
    )
    with serving(script) as server:
        assert f"a test request to the model 'snow' ({status})" in refuse(url_of(server), "--allow")


def test_models_without_a_list_are_named() -> None:
    with serving(answer_models([], prefix="/openai/v1")) as server:
        url = url_of(server, "/openai/v1")
        server.script = answer_models([{"id": "x"}], prefix="/openai/v1")
        assert connect(url, "--allow")[0]["models"] == ["server/x"]
    script = answer_models([])

    def without_list(line: socket.socket, head: bytes, received: bytes) -> bool:
        return script(line, head.replace(b"/v1/models", b"/v1/none"), received)

    with serving(without_list) as server:
        found, _ = connect(url_of(server, ""), "--allow", "--models", "mine, other")
        assert found["models"] == ["server-2/mine", "server-2/other"]


@pytest.mark.parametrize("status", [400, 401, 403, 501])
def test_a_key_that_may_not_list_models_connects_those_that_are_named(status: int) -> None:
    script = answer_models([], key=KEY, prefix="/openai/v1")

    def refuse_list(line: socket.socket, head: bytes, received: bytes) -> bool:
        if head.startswith(b"GET /openai/v1/models "):
            send(line, status, {"error": {"message": "Missing scopes: api.model.read"}})
            return True
        return script(line, head, received)

    with serving(refuse_list) as server:
        url = url_of(server, "/openai")
        arguments = (url, "--allow", "--key", KEY, "--models", "mine")
        wrong = (url, "--allow", "--key", "sk-wrong-0123456789", "--models", "mine")
        assert refuse(*wrong).startswith(
            "The server refuses the key for a test request to the model 'mine' (401). Check "
        )
        # No test request tells whether a model hears.
        assert f"the list of its models ({status})" in refuse(*wrong[:-1], "whisper-1")
        assert f"({status})" in refuse(*arguments[:-2])
        assert connect(*arguments)[0]["models"] == ["server/mine"]
        assert Provider.objects.get().base_url == url_of(server, "/openai/v1")


@pytest.mark.parametrize("path", ["", "/v1", "/openai", "/openai/v1"])
def test_the_models_of_an_empty_list_are_named(path: str) -> None:
    prefix = f"{path.removesuffix('/v1')}/v1"
    with serving(answer_models([], prefix=prefix)) as server:
        found, _ = connect(url_of(server, path), "--allow", "--models", "mine,other")
        assert found["models"] == ["server/mine", "server/other"]
        assert Provider.objects.get().base_url == url_of(server, prefix)


def test_three_hundred_models_are_all_connected() -> None:
    rows = [{"id": f"org-{number % 3}/model-{number // 3}"} for number in range(300)]
    with serving(answer_models(rows)) as server:
        found, _ = connect(url_of(server), "--allow")
    assert len(found["models"]) == len(set(found["models"])) == 300
    assert "server/org-2-model-99" in found["models"]


def test_a_gateway_keeps_its_prices_and_modalities() -> None:
    sees = {"input_modalities": ["image", "text", "smell", 1], "output_modalities": ["text"]}
    rows = [
        {
            "id": "acme/paid",
            "pricing": {"prompt": "0.000001", "completion": "0.000002"},
            "architecture": sees,
        },
        {"id": "acme/auto", "pricing": {"prompt": "-1", "completion": "-1"}},
    ]
    with serving(answer_models(rows)) as server:
        found, notes = connect(url_of(server), "--allow")
    [endpoint] = ModelEndpoint.objects.select_related("price", "model")
    assert found["models"] == ["server/paid"]
    assert endpoint.model.input_modalities == ["text", "image"]
    assert endpoint.model.modality == "text+image->text"
    assert f"{endpoint.price.completion.normalize():f}" == "0.000002"
    assert notes == "Left out, because their prices cannot be read: acme/auto.\n"


@pytest.mark.parametrize(
    ("pricing", "output"),
    [
        ({"input": "0.000001", "output": "0.000002", "input_cache_read": "0.0000001"}, "text"),
        ({"prompt": "0.000001"}, "text"),
        ({"image": "0.04"}, "image"),
        # It is the price of a picture that the model is sent.
        ({"prompt": "0.000001", "completion": "0", "image": "0.04"}, "image"),
    ],
)
def test_a_price_that_does_not_say_what_an_answer_costs_leaves_its_model_out(
    pricing: dict[str, str], output: str
) -> None:
    makes = {"output_modalities": [output]}
    rows = [
        {"id": "acme/paid", "pricing": {"prompt": "0.000001", "completion": "0.000002"}},
        {"id": "acme/other", "pricing": pricing, "architecture": makes},
    ]
    with serving(answer_models(rows)) as server:
        found, notes = connect(url_of(server), "--allow")
    assert found["models"] == ["server/paid"]
    assert notes == "Left out, because their prices cannot be read: acme/other.\n"


@pytest.mark.parametrize(
    ("pricing", "note"),
    [
        ({}, "The models cost nothing until a price is set in the console.\n"),
        ({"prompt": "0", "completion": "0", "image_output": "0.04", "image": "0.04"}, ""),
    ],
)
def test_a_model_of_pictures_is_taken_with_what_its_list_says(
    pricing: dict[str, str], note: str
) -> None:
    makes = {"output_modalities": ["image"]}
    with serving(
        answer_models([{"id": "acme/draw", "pricing": pricing, "architecture": makes}])
    ) as server:
        found, notes = connect(url_of(server), "--allow")
    assert (found["models"], notes) == (["server/draw"], note)
