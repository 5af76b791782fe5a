"""Asks a server for its models and tries one; each failure says what to do about it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Final, NamedTuple

import msgspec
from django.conf import settings

from catalog import dialects
from catalog.capabilities import UNDESCRIBED, Capabilities
from catalog.connecting.servers import name_of, read_model, read_models
from catalog.dialects.base import (
    Call,
    Dialect,
    InvalidReply,
    Operation,
    ProviderFailure,
    Untranslatable,
    build_stated,
    clean_message,
    parse_error,
)
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.models import DialectName
from config import egress
from config.api.errors import Unprocessable
from config.credentials import NO_SECRET, Secret
from config.egress import BaseURL, EgressPolicy, OutboundRequest, Reach, find_refusal, rules
from config.egress.addresses import ANYWHERE, InvalidURL, is_address
from config.egress.client import EgressClient
from config.egress.errors import ConnectionLost, NameUnknown, ProxyFailed

_LIST_SECONDS: Final = 20.0
_MOST_BYTES: Final = 16 * 1024 * 1024
_QUESTION: Final = [{"role": "user", "content": "Answer with one word: which colour has snow?"}]
FIELDS: Final[Mapping[str, tuple[Operation, Mapping[str, Any]]]] = {
    "text": (Operation.CHAT, {"messages": _QUESTION}),
    "embeddings": (Operation.EMBEDDINGS, {"input": "snow"}),
    "rerank": (Operation.RERANK, {"query": "snow", "documents": ["white", "black"]}),
}
# Newer models know the second name alone, and a few servers neither.
_BOUNDS: Final[Sequence[Mapping[str, int]]] = (
    {"max_tokens": 16}, {"max_completion_tokens": 512}, {}
)  # fmt: skip
# How servers answer an operation that a model has not: a chat of a model of embeddings.
_REFUSES_OPERATION: Final = (400, 404, 422, 501)
# The statuses of a server or a proxy that may answer later, and that say nothing about the caller.
_PASSING: Final = frozenset({407, 408, 429, *range(500, 600)} - {501})
_LIST: Final = "the list of its models"
_PORTS: Final = (
    "Ollama listens on 11434, vLLM on 8000, llama.cpp's server on 8080, LM Studio on 1234."
)
_CONTAINERS_HOST: Final = "host.docker.internal"
_CONTAINER: Final = (
    " In a container, this is the container itself; its host is host.docker.internal."
)
# What servers print as their own address, and what people paste behind the base URL.
_LISTENER: Final = re.compile(r"https?://(0\.0\.0\.0|\[::\])(?=[:/]|$)", re.IGNORECASE)
_VERSION: Final = re.compile(r"/v[0-9]+[a-z0-9]*$")
_OPERATIONS: Final = re.compile(r"/(?:chat/completions|completions|embeddings|responses|models)/?$")


class ConnectRefused(Unprocessable):
    """A step failed; the message says which, and what to do. Nothing was stored."""


class OperationRefused(ConnectRefused):
    """The server refuses the operation: the model may be for another one."""


class ExchangeFailed(ConnectRefused):
    """No answer came that can be used; ``kind`` is that of the :class:`egress.EgressError`."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Advice(NamedTuple):
    """The words that tell a person what to give: an option of the command, or a field of a form."""

    allow: str = "run the command again with --allow"
    key: str = "give it with --key-file FILE"
    authorities: str = "give its certificate, or that of its authority, with --ca FILE"
    models: str = "name its models with --models A,B"
    narrow: str = "Leave it out with --models A,B"
    catalogue: str = "leave --organization out"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is judged and may be called: its base URL, and how it is reached."""

    base_url: str
    dialect: str
    secret: Secret
    reach: Reach
    advice: Advice
    # What to do about plain HTTP where it is not allowed.
    tls_advice: str = ""


class TestResult(NamedTuple):
    """The answer to a test request: its status, the beginning of its text, and its time."""

    model: str
    output: str
    status: int
    text: str
    milliseconds: int

    def __str__(self) -> str:
        return f"{self.model} answered in {self.milliseconds} ms: {self.text or '(no text)'}"


def read_url(text: str) -> BaseURL:
    """Returns the base URL in what a person typed; raises :class:`ConnectRefused`.

    A scheme that is left out is http, but https at port 443; a path of an operation is cut off.
    """
    typed = text.strip()
    if "://" not in typed:
        typed = f"{'https' if typed.partition('/')[0].endswith(':443') else 'http'}://{typed}"
    typed = _OPERATIONS.sub("", typed.rstrip("/"))
    if (found := _LISTENER.match(typed)) is not None:
        raise ConnectRefused(
            f"{found[1]} is where a server listens, on all of its addresses, and not where it is "
            "called. Use 127.0.0.1 on the same machine, else the address of its own."
        )
    try:
        policy = EgressPolicy(allowed_networks=ANYWHERE)
        return egress.parse_base_url(typed, policy=policy, require_https=False)
    except InvalidURL as exc:
        problem = str(exc)
        if not typed.lower().startswith(("http://", "https://")):
            problem = "the URL must begin with http:// or https://"
        raise ConnectRefused(
            f"{problem[0].upper()}{problem[1:]}. Write it like http://10.0.0.5:8000/v1 or "
            "https://llm.example.com/v1, with the server's own address."
        ) from None


def is_same_place(base_url: str, address: str) -> bool:
    """Returns whether a base URL is a spelling of a provider's address.

    The scheme and the version do not matter, and either path may go on where the other one ends:
    https://api.deepseek.com is https://api.deepseek.com/v1, and /v1beta/openai is at /v1beta.
    """
    given, known = (
        f"{_VERSION.sub('', each.partition('://')[2])}/" for each in (base_url, address)
    )
    return given.startswith(known) or known.startswith(given)


async def judge(base: BaseURL, reach: Reach, advice: Advice, *, allows: bool) -> Reach:
    """Returns what may be reached for this server; with ``allows``, its own addresses too.

    Raises :class:`ConnectRefused` for an address that is not allowed.
    """
    policy = settings.EGRESS_POLICY.extend(reach)
    port = base.port
    addresses: Sequence[str]
    if (pinned := policy.pinned_address(base.host, port)) is not None:
        addresses, port = [pinned[0]], pinned[1]
    elif is_address(base.host):
        addresses = [base.host]
    else:
        addresses = await _resolve(base)
    for address in addresses:
        plain = base.scheme == "http"
        reason = find_refusal(address, policy, port, plain=plain)
        if reason is None:
            continue
        try:
            own = Reach((ip_network(address),))
        except ValueError:
            own = Reach()
        if find_refusal(address, policy.extend(own), port, plain=plain) is not None:
            raise ConnectRefused(
                f"{_name_host(base, address)} can never be called ({reason}). Use the server's own "
                "address."
            )
        if not allows:
            raise ConnectRefused(_explain_refusal(base, address, reason, advice))
        reach = reach._replace(networks=tuple(dict.fromkeys((*reach.networks, *own.networks))))
        policy = settings.EGRESS_POLICY.extend(reach)
    return reach


def _explain_refusal(base: BaseURL, address: str, reason: str, advice: Advice) -> str:
    network = ip_network(address)
    allow = f"{advice.allow}: it allows {network} for this alone."
    if reason == "plain HTTP":
        return (
            f"{_name_host(base, address)} is a public address, and http:// would send prompts and "
            f"keys there unencrypted. Use https://, or {allow}"
        )
    if reason == "port":
        return f"Port {base.port} is not one that providers use. If it is right, {allow}"
    return (
        f"{_name_host(base, address)} is not a public address ({reason}), so it is called only if "
        f"you allow it: {allow}"
    )


def _name_host(base: BaseURL, address: str) -> str:
    return address if base.host == address else f"{base.host} ({address})"


async def _resolve(base: BaseURL) -> Sequence[str]:
    try:
        found = await asyncio.wait_for(
            asyncio.to_thread(rules.resolve_with_system, base.host, base.port),
            settings.EGRESS_POLICY.connect_timeout,
        )
    except (OSError, UnicodeError, TimeoutError):
        found = []
    if not found:
        raise ConnectRefused(explain_unknown_name(base.host))
    return list(dict.fromkeys(found))


def explain_unknown_name(host: str) -> str:
    """Returns what to do about the name of a server that has no address."""
    if host == _CONTAINERS_HOST:
        # Docker Desktop knows the name by itself, and Docker on Linux does not.
        return (
            f"The name {host} has no address here. Start the container with --add-host "
            f"{host}:host-gateway."
        )
    return (
        f"The name {host} has no address here. Check its spelling, or use the address of the "
        "server. A container knows neither the names of its host nor those of other networks."
    )


async def list_models(
    client: EgressClient, server: Server, *, wants: Sequence[str]
) -> tuple[str, list[dict[str, Any]]]:
    """Returns the base URL at which the server lists its models, and the rows of the list.

    A URL without ``/v1`` is tried with it first. ``wants`` names models for a server that has no
    list, or an empty one, or refuses it to the key. Raises :class:`ConnectRefused`.
    """
    wanted = [{"id": name} for name in wants if name_of({"id": name})]
    bases = [server.base_url]
    if not _VERSION.search(server.base_url):
        # llama.cpp's server answers without it too, but not in OpenAI's format.
        bases.insert(0, f"{server.base_url}/v1")
    answers: dict[str, tuple[int, bytes]] = {}
    unusable: ExchangeFailed | None = None
    for base in bases:
        request = _build(_build_list, Call(Operation.CHAT, base, "", server.secret, {}))
        try:
            deadline = time.monotonic() + _LIST_SECONDS
            status, body = await _exchange(client, server, request, deadline)
        except ExchangeFailed as exc:
            # A redirect of one path says nothing about the other one.
            if exc.kind != "protocol" or base == bases[-1]:
                raise
            unusable = exc
            continue
        if status == 200 and (rows := read_models(body)) is not None:
            # A server that loads a model when it is called may list none.
            return base, rows or wanted
        answers[base] = status, body
    # An answer that wants something of the caller tells more than one that knows no such path.
    telling = [base for base, each in answers.items() if each[0] not in (200, 404, 405)]
    if telling:
        status, body = answers[telling[0]]
        # A key may not list models and yet call them: a test request tells, if there is one.
        is_tried = any(read_model(row).output in FIELDS for row in wanted)
        if not is_tried or status in _PASSING:
            raise _refuse_status(server, _LIST, status, body)
    if wants:
        likely = telling or bases
        is_typed = server.base_url.count("/") > 2 and server.base_url in likely
        return (server.base_url if is_typed else likely[0]), wanted
    if unusable is not None:
        raise unusable
    tried = " and ".join(f"{base}/models" for base in bases)
    raise ConnectRefused(
        f"The server answers, but has no list of models at {tried}. Is it OpenAI-compatible, and "
        "is the path right? It often ends in /v1. If the server has no list, "
        f"{server.advice.models}."
    )


def _build_list(call: Call) -> OutboundRequest:
    login = call.secret.in_header("Authorization", "Bearer ")
    return OutboundRequest("GET", f"{call.base_url}/models", login)


def _build(build: Callable[[Call], OutboundRequest], call: Call) -> OutboundRequest:
    try:
        return build_stated(build, call)
    except (Untranslatable, InvalidCredential) as exc:
        raise ConnectRefused(str(exc)) from None


async def try_model(
    client: EgressClient,
    server: Server,
    model: str,
    output: str,
    capabilities: Capabilities = UNDESCRIBED,
    *,
    deadline: float,
) -> TestResult:
    """Sends a test request to a model and returns its answer; raises :class:`ConnectRefused`.

    ``deadline`` is a time of :func:`time.monotonic`.
    """
    dialect = dialects.get(server.dialect, capabilities)
    if dialect is None:
        problem = dialects.describe_missing_extra(server.dialect)
        raise ConnectRefused(problem or f"The dialect {server.dialect} is not known.")
    operation, fields = FIELDS[output]
    is_named = DialectName(server.dialect).has_url_in_credential
    call = Call(
        operation=operation,
        base_url=None if is_named else server.base_url,
        model=model,
        secret=server.secret,
        fields=fields,
        capabilities=capabilities,
    )
    bounds = _BOUNDS if "messages" in fields else ({},)
    started = time.monotonic()
    for number, bound in enumerate(bounds, 1):
        request = _build(dialect.build, msgspec.structs.replace(call, fields={**fields, **bound}))
        status, body = await _exchange(client, server, request, deadline)
        if status not in (400, 422) or number == len(bounds):
            break
    if status != 200:
        raise _refuse_status(server, f"a test request to the model {model!r}", status, body)
    text = _read_answer(dialect, operation, body, server, model)
    return TestResult(model, output, status, text, round((time.monotonic() - started) * 1000))


async def _exchange(
    client: EgressClient, server: Server, request: OutboundRequest, deadline: float
) -> tuple[int, bytes]:
    """Returns the status and the body of an answer; raises :class:`ExchangeFailed`."""
    seconds = deadline - time.monotonic()
    try:
        response = await client.start(
            request, idle_timeout=seconds, deadline=deadline, reach=server.reach
        )
        try:
            await response.receive_head(seconds)
            return response.status, bytes(await response.read(limit=_MOST_BYTES))
        finally:
            response.close()
    except egress.EgressError as exc:
        raise _refuse_exchange(server, exc) from None


def _read_answer(
    dialect: Dialect, operation: Operation, body: bytes, server: Server, model: str
) -> str:
    """Returns the text of an answer; empty for embeddings, and for thoughts alone."""
    try:
        reply = dialect.parse_reply(operation, body)
    except (InvalidReply, ProviderFailure) as exc:
        raise ConnectRefused(
            f"The answer to a test request to the model {model!r} cannot be used: "
            f"{clean_message(str(exc), server.secret)}"
        ) from None
    choices = reply.fields.get("choices")
    try:
        [message] = msgspec.json.decode(msgspec.json.encode(choices), type=list[dict[str, Any]])
        text = message["message"]["content"]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return ""
    return clean_message(text, server.secret)[:200] if isinstance(text, str) else ""


def _refuse_exchange(server: Server, exc: egress.EgressError) -> ExchangeFailed:
    """Returns the refusal that explains why a server could not be asked."""
    base = read_url(server.base_url)
    place = _place_of(base)
    match exc:
        case egress.TLSFailed():
            text = _explain_tls(base, exc.detail, server)
        case NameUnknown():
            text = explain_unknown_name(base.host)
        case ProxyFailed():
            text = (
                f"{place} is called through EGRESS_PROXY_URL, and {exc.detail}. Does this proxy "
                "want a login (USER:PASSWORD@), and does it let CONNECT pass to an address?"
            )
        case ConnectionLost() | egress.BadResponse() if base.scheme == "http":
            text = (
                f"What answers at {place} does not speak plain HTTP. Does it want TLS? Try "
                f"https://{place}{_path_of(base)}."
            )
        case ConnectionLost() | egress.BadResponse():
            text = f"What answers at {place} does not speak HTTP. Is the port right? {_PORTS}"
        case egress.TimedOut(phase="connect") | egress.ConnectFailed():
            text = _explain_silence(server, base, exc)
        case egress.TimedOut():
            text = (
                f"{place} accepts a connection and does not answer in time. Is the port right, and "
                "is the server busy with other requests?"
            )
        case egress.RedirectRefused():
            text = (
                f"{place} sends callers to another address, and redirects are never followed. Use "
                "the address to which it sends a browser; often https:// in place of http://."
            )
        case egress.AddressRefused():
            text = f"{base.host} changed its address meanwhile ({exc.detail}). Try again."
        case _:
            text = f"{place} cannot be asked: {exc}."
    return ExchangeFailed(text, exc.kind)


def _explain_silence(server: Server, base: BaseURL, exc: egress.EgressError) -> str:
    """Returns why nothing answers at an address: of the internet, or of a server of one's own."""
    place = _place_of(base)
    late = f"{place} does not answer within {settings.EGRESS_POLICY.connect_timeout:g} seconds."
    is_late = isinstance(exc, egress.TimedOut)
    address = ip_address(base.host) if is_address(base.host) else None
    if not server.reach.networks and (address is None or address.is_global):
        what = late if is_late else f"{place} accepts no connection."
        return (
            f"{what} Does this machine reach the internet? Where a proxy is in between, set "
            "EGRESS_PROXY_URL, for serve and work too: HTTPS_PROXY is not read."
        )
    if is_late:
        text = f"{late} Is the address right, and does a firewall let this machine reach it?"
        if base.scheme == "https" and not server.tls_advice:
            text += f" If it speaks plain HTTP, use http://{place}{_path_of(base)}."
        return text
    is_local = base.host == "localhost" or (address is not None and address.is_loopback)
    return (
        f"Nothing accepts connections at {place}. Is the server running, does it listen on this "
        f"address and not on its own loopback alone, and is the port right? {_PORTS}"
        f"{_CONTAINER if is_local else ''}"
    )


def _place_of(base: BaseURL) -> str:
    return f"[{base.host}]:{base.port}" if ":" in base.host else f"{base.host}:{base.port}"


def _path_of(base: BaseURL) -> str:
    return "/" + base.text.removeprefix(f"{base.scheme}://").partition("/")[2]


def _explain_tls(base: BaseURL, detail: str, server: Server) -> str:
    place = _place_of(base)
    match detail:
        case rules.NO_TLS:
            what = server.tls_advice or f"Use http://{place}{_path_of(base)}."
            return f"The server at {place} speaks plain HTTP. {what}"
        case rules.UNKNOWN_AUTHORITY:
            given = ", and not by the one that is given" if server.reach.authorities else ""
            return (
                f"The certificate of {place} is signed by an authority that is not known here"
                f"{given}: {server.advice.authorities}."
            )
        case rules.OTHER_NAME:
            return (
                f"The certificate of {place} is for another name. Use a name that stands in it, or "
                "give the server a certificate for this one."
            )
        case rules.EXPIRED:
            return f"The certificate of {place} has expired, or this machine's clock is wrong."
    return (
        f"TLS with {place} failed ({detail or 'the handshake'}). To see what it offers: openssl "
        f"s_client -connect {place} -servername {base.host}"
    )


def _refuse_status(server: Server, asked: str, status: int, body: bytes) -> ConnectRefused:
    """Returns the refusal for an answer of another status than 200."""
    failure = parse_error(body).clean(server.secret)
    said = f" It says: {failure.message}" if failure.message else ""
    advice = server.advice
    match status:
        case 401 | 403 if server.secret == NO_SECRET:
            text = f"The server wants a key for {asked} ({status}): {advice.key}."
        case 401 | 403:
            text = (
                f"The server refuses the key for {asked} ({status}). Check that it is whole, of "
                "this server, and not expired."
            )
            if asked == _LIST:
                text += f" If it may not list what the server has, {advice.models}."
        case 402:
            text = f"The account of the key has no credit for {asked} (402)."
        case 404:
            text = f"The server does not know {asked} (404). Is the model loaded there?"
        case 429:
            text = f"The server refuses {asked} for now (429): its limit is reached. Try later."
        case 503:
            text = (
                f"The server is not ready for {asked} (503). It may still load its model: try "
                "again in a minute."
            )
        case 407 | 502 | 504:
            text = (
                f"A proxy in between has no answer to {asked} ({status}). Is the server behind it "
                "running? Or call the server at its own address."
            )
        case _:
            text = f"The server refuses {asked} ({status}). Its own log says why."
    refused = OperationRefused if status in _REFUSES_OPERATION else ConnectRefused
    return refused(text + said)
