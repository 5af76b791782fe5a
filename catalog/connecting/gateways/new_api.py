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
    SHARED,
    Deployment,
    GatewayFile,
    NotTaken,
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
    dialect: str = "openai"
    address: str = ""
    path: str = "/v1"


_KINDS: Final[Mapping[int, _Kind]] = {
    1: _Kind("openai"),
    3: _Kind("azure", "azure"),
    4: _Kind(address="http://localhost:11434"),
    8: _Kind(path=""),
    14: _Kind("anthropic", "anthropic"),
    17: _Kind(address="https://dashscope.aliyuncs.com", path="/compatible-mode/v1"),
    19: _Kind(address="https://api.360.cn"),
    20: _Kind(address="https://openrouter.ai/api"),
    24: _Kind("google-ai-studio", "gemini", path="/v1beta"),
    # Its Chinese address, where other keys are valid than at the international one.
    25: _Kind(address="https://api.moonshot.cn"),
    26: _Kind(address="https://open.bigmodel.cn", path="/api/paas/v4"),
    27: _Kind("perplexity", path=""),
    31: _Kind(address="https://api.lingyiwanwu.com"),
    33: _Kind("amazon-bedrock", "bedrock"),
    34: _Kind("cohere", path="/compatibility/v1"),
    35: _Kind(address="https://api.minimax.chat"),
    40: _Kind(address="https://api.siliconflow.cn"),
    41: _Kind("google-vertex", "vertex"),
    42: _Kind("mistral"),
    43: _Kind("deepseek"),
    45: _Kind(address="https://ark.cn-beijing.volces.com", path="/api/v3"),
    46: _Kind(address="https://qianfan.baidubce.com", path="/v2"),
    47: _Kind(),
    48: _Kind("xai"),
    53: _Kind(address="https://llm.submodel.ai"),
}
_ENABLED: Final = 1
_CHAT: Final = re.compile(r"(?:/v1)?/chat/completions\Z")
_SHARES: Final = ("priority", "weight")
# Members that become something, and what happened to a channel, which is no configuration.
_TAKEN: Final = frozenset(
    ("type", "key", "status", "name", "base_url", "models", "model_mapping", "channel_info",
     "id", "created_time", "test_time", "response_time", "balance", "balance_updated_time",
     "used_quota", "other_info", "test_model", *_SHARES, "group")
)  # fmt: skip
# Values of members that change nothing.
_EMPTY: Final = (None, "", "{}", "[]", False)
_DEFAULTS: Final = {"group": "default", "auto_ban": 1}
_GROUP: Final = "group: guardrails and keys say who may use a model, see docs/guardrails.md"


def read_channels(text: str, addresses: Mapping[str, str]) -> GatewayFile:
    """Returns the content of a file; raises :class:`UnreadableGateway`.

    ``addresses`` are the base URLs of the bundle's providers, by their slugs.
    """
    found = GatewayFile()
    for number, channel in enumerate(read_json_entries(text, _HOLDERS), 1):
        if not isinstance(channel, Entry):
            raise UnreadableGateway(f"Channel {number} of the list must be an object.")
        line = channel.line
        if not isinstance(channel.get("models"), str):
            raise UnreadableGateway(f"Line {line}: a channel must be an object with models.")
        name = str(channel.get("name") or channel.get("id") or "")
        stated = channel.get("type", 0)
        kind = _KINDS.get(stated) if isinstance(stated, int) else None
        try:
            if channel.get("status", _ENABLED) != _ENABLED:
                raise NotTaken("the channel is disabled")
            if kind is None:
                raise NotTaken(f"channels of the type {stated} have no counterpart")
            for deployment in _read_channel(channel, kind, addresses):
                found.add(deployment)
        except NotTaken as exc:
            found.leave_out(line, name, str(exc))
            continue
        _leave_members(name, channel, kind, found)
    return found


def _leave_members(name: str, channel: Entry, kind: _Kind, found: GatewayFile) -> None:
    line, routing, info = channel.line, _read_routing(channel), channel.get("channel_info")
    if channel.get("group") not in (*_EMPTY, _DEFAULTS["group"]):
        found.leave_out(line, name, _GROUP)
    used = {*_TAKEN, "other"} if kind.dialect in ("azure", "vertex") else _TAKEN
    others = (member for member in channel if member not in used)
    found.leave_members(
        line,
        name,
        (each for each in others if channel[each] not in (*_EMPTY, _DEFAULTS.get(each))),
    )
    if isinstance(info, dict) and info.get("is_multi_key") and _find_disabled(info):
        found.leave_out(line, name, "its disabled keys")
    for share in channel:
        if share in _SHARES and channel[share] not in _EMPTY:
            found.leave_out(line, name, f"{share}: {SHARED}", is_share=share in routing)


def _read_channel(
    channel: Entry, kind: _Kind, addresses: Mapping[str, str]
) -> Iterator[Deployment]:
    """Yields a deployment for each model of a channel and each of its keys."""
    family, base_url = _find_server(channel, kind, addresses)
    mapping = _read_mapping(channel.get("model_mapping"))
    keys = _list_keys(channel)
    secrets = [_read_secret(channel, kind, key, is_own=not family) for key in keys]
    names = dict.fromkeys(name.strip() for name in channel["models"].split(","))
    names.pop("", None)
    if not names:
        raise NotTaken("models: it names none")
    for name in names:
        for secret in secrets:
            yield Deployment(
                line=channel.line,
                name=name,
                family=family,
                dialect=kind.dialect,
                base_url=base_url,
                upstream_id=_follow(mapping, name, kind),
                secret=secret,
                routing=_read_routing(channel),
            )


def _read_routing(channel: Entry) -> dict[str, int]:
    shares = {name: read_share(channel.get(name)) for name in _SHARES}
    return {name: share for name, share in shares.items() if share is not None}


def _find_server(
    channel: Entry, kind: _Kind, addresses: Mapping[str, str]
) -> tuple[str, str | None]:
    """Returns the family and the address of a channel."""
    if kind.dialect in ("azure", "bedrock", "vertex"):
        return kind.family, None
    stated = str(channel.get("base_url") or "").strip().rstrip("/")
    if not stated and kind.family:
        return kind.family, addresses[kind.family]
    base_url = stated or kind.address
    if not base_url:
        raise NotTaken("base_url is missing")
    if not kind.path:
        # The address of a channel of its own kind is that of the whole request.
        base_url = _CHAT.sub("/v1" if "/v1/" in base_url else "", base_url)
    elif not base_url.endswith(kind.path):
        base_url += kind.path
    # Some providers have one more address in China, which is another server.
    family = next((slug for slug, address in addresses.items() if address == base_url), "")
    if not family and kind.dialect == "gemini":
        raise NotTaken("base_url: Google's format is spoken to Google's own address alone")
    return family, base_url


def _read_mapping(stated: Any) -> dict[str, str]:
    try:
        mapping = json.loads(stated or "{}") if isinstance(stated, str) else stated or {}
    except (ValueError, RecursionError):
        mapping = None
    if not isinstance(mapping, dict) or not all(isinstance(each, str) for each in mapping.values()):
        raise NotTaken("model_mapping: must be a JSON object of names")
    return mapping


def _follow(mapping: Mapping[str, str], name: str, kind: _Kind) -> str:
    """Returns the upstream's name of a model; a mapping may lead to another one."""
    seen = {name}
    while (target := mapping.get(name)) and target not in seen:
        seen.add(name := target)
    is_googles = kind.dialect == "vertex" and "/" not in name and not name.startswith("claude")
    return f"google/{name}" if is_googles else name


def _find_disabled(info: Mapping[str, Any]) -> frozenset[str]:
    listed = info.get("multi_key_status_list")
    pairs = listed.items() if isinstance(listed, dict) else ()
    return frozenset(place for place, status in pairs if status != _ENABLED)


def _list_keys(channel: Entry) -> list[str]:
    """Returns the keys of a channel that are enabled; it has several, one a line or in a list."""
    text = str(channel.get("key") or "").strip()
    info = channel.get("channel_info")
    if not isinstance(info, dict) or not info.get("is_multi_key"):
        return [text]
    try:
        keys = [json.dumps(each) for each in json.loads(text)] if text.startswith("[") else None
    except (ValueError, RecursionError, TypeError):
        raise NotTaken("key: must be one key a line, or a JSON list") from None
    disabled = _find_disabled(info)
    lines = enumerate(map(str.strip, text.split("\n")) if keys is None else keys)
    if not (found := [key for place, key in lines if str(place) not in disabled]):
        raise NotTaken("key: all keys of the channel are disabled")
    return found


def _read_secret(channel: Entry, kind: _Kind, key: str, *, is_own: bool) -> Secret | None:
    """Returns the secret in the form of our dialects."""
    other = str(channel.get("other") or "")
    if kind.dialect == "azure" and key:
        return write_secret(
            api_key=key,
            endpoint_url=str(channel.get("base_url") or "").rstrip("/"),
            api_version=read_version(other),
        )
    if kind.dialect == "bedrock" and key:
        parts = key.split("|")
        if len(parts) not in (2, 3):
            raise NotTaken("key: must be ACCESS_KEY|SECRET|REGION or KEY|REGION")
        names = ("access_key_id", "secret_access_key") if len(parts) == 3 else ("api_key",)
        return write_secret(**dict(zip((*names, "region"), parts, strict=True)))
    if kind.dialect == "vertex" and key:
        return _read_vertex(key, other or "us-central1")
    return read_secret(key, is_own_server=is_own)


def _read_vertex(key: str, other: str) -> Secret | None:
    try:
        account = json.loads(key)
        location = json.loads(other)["default"] if other.startswith("{") else other
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NotTaken("key: must be the JSON of a service account, and other a location") from None
    project = account.get("project_id") if isinstance(account, dict) else None
    return write_secret(project_id=project, location=location, service_account=account)
