"""The channels of new-api: the JSON of its list, whole or as its answers have it; pure.

https://github.com/QuantumNous/new-api has the members in ``model/channel.go`` and the numbers of
the types in ``constant/channel.go``. An address is that of a server, without the path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from catalog.connecting.gateways.deployments import (
    ACCESS,
    MOST_MODELS,
    SHARED,
    Deployment,
    GatewayFile,
    GatewayServer,
    NotTaken,
    Servers,
    locate,
    name_googles,
    read_secret,
    read_share,
    read_version,
    write_secret,
)
from catalog.connecting.gateways.documents import Entry, UnreadableGateway, read_json_entries
from config.credentials import Secret

_HOLDERS: Final = ("data", "items")


class _Kind(NamedTuple):
    """A type of channels: our slug, or the address of a server; ``path`` is added to a base URL."""

    family: str = ""
    address: str = ""
    path: str = "/v1"


_OLLAMA: Final = 4
_BAIDU: Final = 46
_KINDS: Final[Mapping[int, _Kind]] = {
    1: _Kind("openai"),
    3: _Kind("azure"),
    _OLLAMA: _Kind(address="http://localhost:11434"),
    8: _Kind(path=""),
    14: _Kind("anthropic"),
    17: _Kind(address="https://dashscope.aliyuncs.com", path="/compatible-mode/v1"),
    19: _Kind(address="https://api.360.cn"),
    20: _Kind(address="https://openrouter.ai/api"),
    24: _Kind("google-ai-studio", path="/v1beta"),
    # Its Chinese address, where other keys are valid than at the international one.
    25: _Kind(address="https://api.moonshot.cn"),
    26: _Kind(address="https://open.bigmodel.cn", path="/api/paas/v4"),
    27: _Kind("perplexity", path=""),
    31: _Kind(address="https://api.lingyiwanwu.com"),
    33: _Kind("amazon-bedrock"),
    34: _Kind("cohere", path="/compatibility/v1"),
    35: _Kind(address="https://api.minimax.chat"),
    40: _Kind(address="https://api.siliconflow.cn"),
    41: _Kind("google-vertex"),
    42: _Kind("mistral"),
    43: _Kind("deepseek"),
    45: _Kind(address="https://ark.cn-beijing.volces.com", path="/api/v3"),
    _BAIDU: _Kind(address="https://qianfan.baidubce.com", path="/v2"),
    47: _Kind(),
    48: _Kind("xai"),
    53: _Kind(address="https://llm.submodel.ai"),
}
# Its addresses end in the name of a provider, behind which no version follows.
_CLOUDFLARE: Final = "https://gateway.ai.cloudflare.com/"
# Before this day, 2025-05-10, new-api took the dots out of the names of Azure's deployments.
_DOTS_SINCE: Final = 1_746_835_200
_ENABLED: Final = 1
_CHAT: Final = re.compile(r"(/v1)?/chat/completions\Z")
_SHARES: Final = ("priority", "weight")
# Members that become something, and what happened to a channel, which is no configuration.
_TAKEN: Final = frozenset(
    ("type", "key", "status", "name", "base_url", "models", "model_mapping", "channel_info",
     "id", "created_time", "test_time", "response_time", "balance", "balance_updated_time",
     "used_quota", "other_info", "test_model", *_SHARES, "group")
)  # fmt: skip
# Values of members that change nothing.
_EMPTY: Final = (None, "", "{}", "[]", False)
_DEFAULT_GROUP: Final = "default"
# Values that other members have by themselves, and members whose own members are switches.
_DEFAULTS: Final = {"auto_ban": 1}
_SWITCHES: Final = ("setting", "settings")
# Exports of some databases have all numbers as texts.
_NUMBERS: Final = ("type", "status", "created_time", "auto_ban", *_SHARES)
_DIGITS: Final = re.compile(r"-?[0-9]{1,18}")


def read_channels(text: str, servers: Servers) -> GatewayFile:
    """Returns the content of a file; raises :class:`UnreadableGateway`."""
    found = GatewayFile()
    for number, channel in enumerate(read_json_entries(text, _HOLDERS), 1):
        if not isinstance(channel, Entry):
            raise UnreadableGateway(f"Channel {number} of the list must be an object.")
        line = channel.line
        if not isinstance(channel.get("models"), str):
            raise UnreadableGateway(f"Line {line}: a channel must be an object with models.")
        name = str(channel.get("name") or channel.get("id") or "")
        for member in _NUMBERS:
            if isinstance(value := channel.get(member), str) and _DIGITS.fullmatch(value):
                channel[member] = int(value)
        stated = channel.get("type", 0)
        kind = _KINDS.get(stated) if isinstance(stated, int) else None
        try:
            if channel.get("status", _ENABLED) != _ENABLED:
                raise NotTaken("the channel is disabled")
            if kind is None:
                raise NotTaken(f"channels of the type {stated} have no counterpart")
            # The rows of a table have their objects as texts.
            channel["channel_info"] = _read_object(channel, "channel_info")
            deployments = list(_read_channel(channel, kind, servers))
        except NotTaken as exc:
            found.leave_out(line, name, str(exc))
            continue
        for deployment in deployments:
            found.add(deployment)
        _leave_members(name, channel, kind, found)
    return found


def _leave_members(name: str, channel: Entry, kind: _Kind, found: GatewayFile) -> None:
    line, routing = channel.line, _read_routing(channel)
    if channel.get("group") not in (*_EMPTY, _DEFAULT_GROUP):
        found.leave_out(line, name, f"group: {ACCESS}")
    used = {*_TAKEN, "other"} if kind.family in ("azure", "google-vertex") else _TAKEN
    found.leave_members(
        line, name, (each for each in channel if each not in used and _says(channel, each))
    )
    if _is_shared(channel) and _find_disabled(channel):
        found.leave_out(line, name, "its disabled keys")
    if channel["type"] == _BAIDU and "|" in str(channel.get("key")):
        found.leave_out(line, name, "the application behind its key")
    for share in channel:
        if share in _SHARES and channel[share] not in _EMPTY:
            found.leave_out(line, name, f"{share}: {SHARED}", is_share=share in routing)


def _says(channel: Entry, name: str) -> bool:
    """Returns whether a member changes anything; forms write all their switches as they are."""
    value = channel[name]
    if name in _DEFAULTS:
        return bool(value != _DEFAULTS[name])
    try:
        if isinstance(value, str) and value.startswith(("{", "[")):
            value = json.loads(value)
    except (ValueError, RecursionError):
        return True
    if name in _SWITCHES and isinstance(value, dict):
        return any(each not in _EMPTY for each in value.values())
    return bool(value) if isinstance(value, dict | list) else value not in _EMPTY


def _read_object(channel: Entry, name: str) -> dict[str, Any]:
    """Returns a member that is an object, or the text of one; empty where it is missing."""
    stated = channel.get(name)
    try:
        found = json.loads(stated or "{}") if isinstance(stated, str) else stated or {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise NotTaken(f"{name}: must be a JSON object")
    return found


def _read_channel(channel: Entry, kind: _Kind, servers: Servers) -> Iterator[Deployment]:
    """Yields a deployment for each model of a channel and each of its keys."""
    server = _find_server(channel, kind, servers)
    mapping = _read_object(channel, "model_mapping")
    if not all(isinstance(each, str) for each in mapping.values()):
        raise NotTaken("model_mapping: must be a JSON object of names")
    keys = _list_keys(channel)
    names = dict.fromkeys(name.strip() for name in channel["models"].split(","))
    names.pop("", None)
    if not names:
        raise NotTaken("models: it names none")
    if len(names) * len(keys) > MOST_MODELS:
        raise NotTaken(f"models: with its keys they are more than {MOST_MODELS:,}")
    secrets: dict[str, list[tuple[Secret | None, dict[str, str]]]] = {}
    for name in names:
        other, there = _read_other(channel, server, name), _follow(mapping, name)
        if other not in secrets:
            secrets[other] = [_read_secret(channel, server, key, other) for key in keys]
        for secret, place in secrets[other]:
            yield Deployment(
                line=channel.line,
                name=name,
                server=server,
                upstream_id=_write_name(there, server, channel),
                # Without its dots, a deployment of Azure's does not say which model it is.
                hint=there if server.dialect == "azure" and "." in there else "",
                secret=secret,
                place=place,
                routing=_read_routing(channel),
            )


def _read_routing(channel: Entry) -> dict[str, int]:
    shares = {name: read_share(channel.get(name)) for name in _SHARES}
    return {name: share for name, share in shares.items() if share is not None}


def _find_server(channel: Entry, kind: _Kind, servers: Servers) -> GatewayServer:
    server = servers.get(kind.family)
    if server is not None and server.is_cloud:
        return server
    stated = str(channel.get("base_url") or "").strip().rstrip("/")
    if not stated and server is not None:
        return server
    base_url = stated or kind.address
    if not base_url:
        raise NotTaken("base_url is missing")
    if not kind.path:
        # The address of a channel of its own kind is that of the whole request.
        base_url = _CHAT.sub(lambda match: match[1] or "", base_url)
    elif not base_url.endswith(kind.path) and not base_url.startswith(_CLOUDFLARE):
        base_url += kind.path
    # Some providers have one more address in China, which is another server.
    return locate("openai" if server is None else server.dialect, base_url, servers)


def _follow(mapping: Mapping[str, str], name: str) -> str:
    """Returns the upstream's name of a model; a mapping may lead to another one."""
    seen = {name}
    while (target := mapping.get(name)) and target not in seen:
        seen.add(name := target)
    return name


def _write_name(name: str, server: GatewayServer, channel: Entry) -> str:
    """Returns the name that new-api sends to a server."""
    created = channel.get("created_time")
    if server.dialect == "azure" and isinstance(created, int) and created < _DOTS_SINCE:
        return name.replace(".", "")
    return name_googles(name) if server.dialect == "vertex" else name


def _is_shared(channel: Entry) -> bool:
    """Returns whether a channel has several keys."""
    return bool(channel["channel_info"].get("is_multi_key"))


def _find_disabled(channel: Entry) -> frozenset[str]:
    listed = channel["channel_info"].get("multi_key_status_list")
    pairs = listed.items() if isinstance(listed, dict) else ()
    return frozenset(place for place, status in pairs if status != _ENABLED)


def _list_keys(channel: Entry) -> list[str]:
    """Returns the keys of a channel that are enabled; it has several, one a line or in a list."""
    text = str(channel.get("key") or "").strip()
    if not _is_shared(channel):
        return [text]
    try:
        keys = [json.dumps(each) for each in json.loads(text)] if text.startswith("[") else None
    except (ValueError, RecursionError, TypeError):
        raise NotTaken("key: must be one key a line, or a JSON list") from None
    disabled = _find_disabled(channel)
    lines = enumerate(map(str.strip, text.split("\n")) if keys is None else keys)
    if not (found := [key for place, key in lines if str(place) not in disabled]):
        raise NotTaken("key: all keys of the channel are disabled")
    return found


def _read_other(channel: Entry, server: GatewayServer, name: str) -> str:
    """Returns what ``other`` says for a model: Azure's version, or the location at Vertex AI."""
    stated = str(channel.get("other") or "")
    if server.dialect != "vertex":
        return stated if server.dialect == "azure" else ""
    if not stated.startswith("{"):
        return stated or "us-central1"
    locations = _read_object(channel, "other")
    return str(locations.get(name) or locations.get("default") or "global")


def _read_secret(
    channel: Entry, server: GatewayServer, key: str, other: str
) -> tuple[Secret | None, dict[str, str]]:
    """Returns the secret in the form of our dialects, and the place that a cloud's must state."""
    match server.dialect:
        case "azure":
            place = {"endpoint_url": str(channel.get("base_url") or "").rstrip("/")}
            version = read_version(other)
            return (write_secret(place, api_key=key, api_version=version) if key else None), place
        case "bedrock" if key:
            *parts, region = key.split("|")
            if len(parts) not in (1, 2):
                raise NotTaken("key: must be ACCESS_KEY|SECRET|REGION or KEY|REGION")
            names = ("access_key_id", "secret_access_key") if len(parts) == 2 else ("api_key",)
            place = {"region": region}
            return write_secret(place, **dict(zip(names, parts, strict=True))), place
        case "vertex":
            place = {"location": other}
            return (_read_vertex(key, place) if key else None), place
    # An answer of new-api lacks the keys. Ollama alone needs none.
    is_keyless = not server.family and (bool(key) or channel["type"] == _OLLAMA)
    if channel["type"] == _BAIDU:
        key = key.partition("|")[0]
    return read_secret(key, is_keyless=is_keyless and _is_own(channel)), {}


def _is_own(channel: Entry) -> bool:
    """Returns whether a channel has an address of one's own, not that of its kind."""
    address = _KINDS[channel["type"]].address
    return bool(channel.get("base_url")) or not address.startswith("https:")


def _read_vertex(key: str, place: Mapping[str, str]) -> Secret | None:
    try:
        account = json.loads(key)
    except (ValueError, RecursionError):
        raise NotTaken("key: must be the JSON of a service account") from None
    project = account.get("project_id") if isinstance(account, dict) else None
    return write_secret(place, project_id=project, service_account=account)
