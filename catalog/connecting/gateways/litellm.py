"""The ``config.yaml`` of LiteLLM's proxy; pure.

https://docs.litellm.ai/docs/proxy/configs describes it. Several entries of ``model_list`` may have
one ``model_name``. A value ``os.environ/NAME`` stands for that of an environment variable.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from catalog.connecting.gateways.deployments import (
    SHARED,
    Deployment,
    GatewayFile,
    NotTaken,
    read_secret,
    read_share,
    write_secret,
)
from catalog.connecting.gateways.documents import Entry, Listed, UnreadableGateway, read_yaml
from catalog.sync.documents import InvalidRow
from catalog.sync.litellm import read_stated_price
from config.egress.rules import MOST_SECONDS

_ENVIRONMENT: Final = "os.environ/"


class _Kind(NamedTuple):
    """A provider of LiteLLM: our slug, its variable for the key, and what is put before a name.

    Without a slug it is a server of one's own, at ``address`` unless ``api_base`` names another
    one, and ``path`` is added to its address.
    """

    family: str = ""
    variables: tuple[str, ...] = ()
    adds: str = ""
    address: str = ""
    path: str = ""

    @property
    def missing(self) -> str:
        """Returns what a deployment without a key lacks."""
        if self.family == "google-vertex":
            return "vertex_credentials must be the JSON of a service account, not its path"
        return f"api_key is missing, and {' or '.join(self.variables)} is not set"


_OWN: Final = _Kind()
_KINDS: Final[Mapping[str, _Kind]] = {
    "openai": _Kind("openai", ("OPENAI_API_KEY",)),
    "text-completion-openai": _Kind("openai", ("OPENAI_API_KEY",)),
    "anthropic": _Kind("anthropic", ("ANTHROPIC_API_KEY",)),
    "azure": _Kind("azure", ("AZURE_API_KEY",)),
    "azure_ai": _Kind("azure", ("AZURE_AI_API_KEY",)),
    "bedrock": _Kind("amazon-bedrock", ("AWS_BEARER_TOKEN_BEDROCK",)),
    "vertex_ai": _Kind("google-vertex", adds="google/"),
    "gemini": _Kind("google-ai-studio", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
    "mistral": _Kind("mistral", ("MISTRAL_API_KEY",)),
    "cohere": _Kind("cohere", ("COHERE_API_KEY",)),
    "cohere_chat": _Kind("cohere", ("COHERE_API_KEY",)),
    "deepseek": _Kind("deepseek", ("DEEPSEEK_API_KEY",)),
    "xai": _Kind("xai", ("XAI_API_KEY",)),
    "voyage": _Kind("voyageai", ("VOYAGE_API_KEY",)),
    "moonshot": _Kind("moonshotai", ("MOONSHOT_API_KEY",)),
    "zai": _Kind("z-ai", ("ZAI_API_KEY",)),
    "minimax": _Kind("minimax", ("MINIMAX_API_KEY",)),
    "perplexity": _Kind("perplexity", ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY")),
    "groq": _Kind("groq", ("GROQ_API_KEY",)),
    "cerebras": _Kind("cerebras", ("CEREBRAS_API_KEY",)),
    "sambanova": _Kind("sambanova", ("SAMBANOVA_API_KEY",)),
    "fireworks_ai": _Kind("fireworks", ("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY")),
    "together_ai": _Kind("together", ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY")),
    "deepinfra": _Kind("deepinfra", ("DEEPINFRA_API_KEY",)),
    "nebius": _Kind("nebius", ("NEBIUS_API_KEY",)),
    "openrouter": _Kind("", ("OPENROUTER_API_KEY",), address="https://openrouter.ai/api/v1"),
    "ollama": _Kind(address="http://localhost:11434", path="/v1"),
    "ollama_chat": _Kind(address="http://localhost:11434", path="/v1"),
    "lm_studio": _OWN, "hosted_vllm": _OWN, "vllm": _OWN, "openai_like": _OWN,
    "custom_openai": _OWN, "llamafile": _OWN, "xinference": _OWN, "litellm_proxy": _OWN,
}  # fmt: skip
# Names without a provider, which LiteLLM looks up in its own list.
_BARE: Final = (
    (
        "openai",
        re.compile(r"(?:gpt-|chatgpt-|o[134](?:-|\Z)|text-embedding-|dall-e|whisper-|tts-)"),
    ),
    ("anthropic", re.compile(r"claude-")),
    ("vertex_ai", re.compile(r"gemini-")),
)
# Parts of a model's path that choose a route of LiteLLM's.
_ROUTES: Final = re.compile(r"(?:converse|converse_like|invoke|responses|o_series)/")
_REGION: Final = re.compile(r"([a-z]{2}(?:-[a-z]+)+-[0-9]{1,2})/")
_DATED: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:-preview)?")
_OUTPUTS: Final[Mapping[str, str]] = {
    "chat": "text", "completion": "text", "responses": "text", "embedding": "embeddings",
    "rerank": "rerank", "audio_speech": "speech", "audio_transcription": "transcription",
    "image_generation": "image",
}  # fmt: skip
_LIMITS: Final = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute"}
_TIMES: Final = {"timeout": "headers", "stream_timeout": "first_event"}
_ENTRY: Final = frozenset(("model_name", "litellm_params", "model_info", *_LIMITS))
_INFO: Final = frozenset(("mode", "base_model", "max_input_tokens", "max_output_tokens", *_LIMITS))
_PARAMS: Final = frozenset(
    ("model", "custom_llm_provider", "api_key", "api_base", "base_url", "api_version",
     "litellm_credential_name", "aws_region_name", "aws_access_key_id", "aws_secret_access_key",
     "aws_session_token", "vertex_project", "vertex_ai_project", "vertex_location",
     "vertex_ai_location", "vertex_credentials", "base_model", *_LIMITS, *_TIMES)
)  # fmt: skip
_FIRST: Final = 1_000
_MAPS: Final = ("router_settings", "litellm_settings")
_SHARES: Final = {"litellm_params.order": "priority", "litellm_params.weight": "weight"}
# What a person does instead. Other members have no counterpart.
_ADVICE: Final[Mapping[str, str]] = {
    "general_settings.master_key": "programs that use it go on with import_keys, column key",
    "general_settings.database_url": "keys and budgets of its database come by import_keys",
    "litellm_settings.drop_params": "parameters that a model lacks are dropped already",
    "litellm_settings.callbacks": "see docs/broadcast.md",
    "litellm_settings.success_callback": "see docs/broadcast.md",
    "router_settings.routing_strategy": SHARED,
    "litellm_params.weight": SHARED,
    "litellm_params.order": SHARED,
    "include": "import the included files one by one",
    "environment_variables": "set them where Causeway runs",
    "guardrails": "see docs/guardrails.md",
}


def read_config(text: str, environ: Mapping[str, str], addresses: Mapping[str, str]) -> GatewayFile:
    """Returns the content of a file; raises :class:`UnreadableGateway`.

    ``addresses`` are the base URLs of the bundle's providers, by their slugs.
    """
    document, found = read_yaml(text), GatewayFile()
    models = document.get("model_list")
    if not isinstance(models, list):
        line = document.lines.get("model_list", 1)
        raise UnreadableGateway(f"Line {line}: model_list must be a list of models.")
    reader = _Reader(environ, addresses, _read_credentials(document, found))
    for each in models:
        name = each.value.get("model_name") if isinstance(each.value, Entry) else None
        if not isinstance(name, str) or not name:
            raise UnreadableGateway(
                f"Line {each.line}: an entry of model_list must be an object with model_name."
            )
        routing: Mapping[str, int] = {}
        try:
            deployment = reader.read(each.value, name)
            found.add(deployment)
            routing = deployment.routing
        except (NotTaken, InvalidRow) as exc:
            found.leave_out(each.line, name, str(exc))
        others = list(_find_others(each.value))
        plain = [other for other in others if other not in _ADVICE]
        found.leave_members(each.line, name, plain)
        for other in others:
            if other in _ADVICE:
                is_share = _SHARES.get(other) in routing
                found.leave_out(each.line, name, f"{other}: {_ADVICE[other]}", is_share=is_share)
    _read_settings(document, found)
    return found


def _read_credentials(document: Entry, found: GatewayFile) -> dict[str, Entry]:
    """Returns the values of ``credential_list`` by their names."""
    credentials: dict[str, Entry] = {}
    listed = document.get("credential_list")
    for each in listed if isinstance(listed, list) else ():
        entry = each.value if isinstance(each.value, Entry) else Entry(each.line)
        name, values = entry.get("credential_name"), entry.get("credential_values")
        if isinstance(name, str) and isinstance(values, Entry):
            credentials[name] = values
        else:
            found.leave_out(each.line, "credential_list", "it has no name, or no values")
    return credentials


def _find_others(entry: Entry) -> Iterator[str]:
    """Yields the members of an entry that become nothing."""
    yield from (name for name in entry if name not in _ENTRY)
    for group, known in (("litellm_params", _PARAMS), ("model_info", _INFO)):
        members = entry.get(group)
        for name in members if isinstance(members, Entry) else ():
            if name not in known and not _is_price(name):
                yield f"{group}.{name}"


def _is_price(name: str) -> bool:
    return "cost_per_" in name or name.endswith("_cost") or name == "tiered_pricing"


class _Reader:
    """Reads the entries of ``model_list``."""

    def __init__(
        self,
        environ: Mapping[str, str],
        addresses: Mapping[str, str],
        credentials: Mapping[str, Entry],
    ) -> None:
        self._environ = environ
        self._addresses = addresses
        self._families = {address: slug for slug, address in addresses.items() if address}
        self._credentials = credentials

    def read(self, entry: Entry, name: str) -> Deployment:
        """Returns the deployment of an entry; raises :class:`NotTaken`."""
        stated, info = entry.get("litellm_params"), entry.get("model_info")
        params: dict[str, Any] = dict(stated) if isinstance(stated, Entry) else {}
        if isinstance(reference := params.get("litellm_credential_name"), str):
            if reference not in self._credentials:
                raise NotTaken(f"credential_list has no {reference!r}")
            params = {**self._credentials[reference], **params}
        facts: dict[str, Any] = dict(info) if isinstance(info, Entry) else {}
        model = self._text(params, "model")
        if model is None:
            raise NotTaken("litellm_params.model is missing")
        mode = facts.get("mode", "chat")
        if not isinstance(mode, str) or mode not in _OUTPUTS:
            raise NotTaken("no route serves the model_info.mode")
        kind, upstream = _split_model(model, self._text(params, "custom_llm_provider"))
        region = None
        if kind.family == "amazon-bedrock" and (match := _REGION.match(upstream)):
            region, upstream = match[1], upstream[match.end() :]
        family, dialect, base_url = self._find_server(
            kind, self._text(params, "api_base", "base_url")
        )
        pricing, lines = _read_price({**facts, **params, "mode": mode})
        return Deployment(
            line=entry.line,
            name=name,
            family=family,
            dialect=dialect,
            base_url=base_url,
            upstream_id=upstream,
            secret=self._read_secret(params, kind, dialect, is_own=not family, region=region),
            output=_OUTPUTS[mode] if "mode" in facts else None,
            pricing=pricing,
            lines=lines,
            limits=self._read_numbers(_LIMITS, params, facts, entry),
            timeouts=self._read_numbers(_TIMES, params, most=MOST_SECONDS),
            routing=_read_routing(params),
            context_length=_read_length(facts, "max_input_tokens"),
            max_completion_tokens=_read_length(facts, "max_output_tokens"),
            missing=kind.missing,
            hint=str(facts.get("base_model") or params.get("base_model") or ""),
        )

    def _find_server(self, kind: _Kind, api_base: str | None) -> tuple[str, str, str | None]:
        """Returns the family, the dialect and the address of a server."""
        dialect = _DIALECTS.get(kind.family, "openai")
        if dialect in _CLOUDS:
            return kind.family, dialect, None
        own = (api_base or kind.address).rstrip("/")
        if not own and not kind.family:
            raise NotTaken("api_base: the address of the server is missing")
        base_url = own if not own or own.endswith(kind.path) else f"{own}{kind.path}"
        if not base_url or base_url == self._addresses.get(kind.family):
            return kind.family, dialect, self._addresses[kind.family]
        if base_url in self._families:
            family = self._families[base_url]
            return family, _DIALECTS.get(family, "openai"), base_url
        if dialect == "gemini":
            raise NotTaken("api_base: Google's format is spoken to Google's own address alone")
        if dialect == "anthropic":
            # LiteLLM adds the whole path.
            base_url = f"{base_url.removesuffix('/messages').removesuffix('/v1')}/v1"
        return "", dialect, base_url

    def _read_secret(
        self,
        params: Mapping[str, Any],
        kind: _Kind,
        dialect: str,
        *,
        is_own: bool,
        region: str | None,
    ) -> Any:
        key = self._text(params, "api_key")
        if dialect == "bedrock":
            return self._read_bedrock(params, key, region)
        if dialect == "vertex":
            return self._read_vertex(params)
        if key is None and not (is_own and kind.family):
            key = self._first(*kind.variables)
        if dialect != "azure" or key is None:
            return read_secret(key, is_own_server=is_own)
        address = self._text(params, "api_base", "base_url")
        address = address or self._first("AZURE_API_BASE", "AZURE_AI_API_BASE")
        if address is None:
            raise NotTaken("api_base: the address of the Azure resource is missing")
        version = self._text(params, "api_version") or self._first("AZURE_API_VERSION")
        is_dated = version is not None and _DATED.fullmatch(version)
        return write_secret(
            api_key=key, endpoint_url=address, api_version=version if is_dated else None
        )

    def _read_bedrock(self, params: Mapping[str, Any], key: str | None, region: str | None) -> Any:
        region = self._text(params, "aws_region_name") or region
        region = region or self._first("AWS_REGION_NAME", "AWS_REGION", "AWS_DEFAULT_REGION")
        if region is None:
            raise NotTaken("aws_region_name is missing, and AWS_REGION is not set")
        names = ("access_key_id", "secret_access_key", "session_token")
        members = {name: self._text(params, f"aws_{name}") for name in names}
        if members["access_key_id"] is None:
            key = key or self._first("AWS_BEARER_TOKEN_BEDROCK")
            if key is not None:
                return write_secret(region=region, api_key=key)
            members = {name: self._first(f"AWS_{name.upper()}") for name in names}
        if members["access_key_id"] is None or members["secret_access_key"] is None:
            return None
        return write_secret(region=region, **members)

    def _read_vertex(self, params: Mapping[str, Any]) -> Any:
        project = self._text(params, "vertex_project", "vertex_ai_project")
        project = project or self._first("VERTEXAI_PROJECT")
        location = self._text(params, "vertex_location", "vertex_ai_location")
        location = location or self._first("VERTEXAI_LOCATION") or "us-central1"
        account: Any = params.get("vertex_credentials")
        if not isinstance(account, Entry):
            text = self._text(params, "vertex_credentials")
            if text is None:
                return None
            try:
                account = json.loads(text)
            except (ValueError, RecursionError):
                return None
        members = {"project_id": project, "location": location, "service_account": account}
        return read_secret(json.dumps(members), is_own_server=False)

    def _read_numbers(
        self, names: Mapping[str, str], *holders: Mapping[str, Any], most: int = 2**31 - 1
    ) -> dict[str, int]:
        """Returns whole numbers by our names; fractions are rounded up."""
        found: dict[str, int] = {}
        for name, ours in names.items():
            holder = next((each for each in holders if each.get(name) is not None), None)
            value = None if holder is None else self._resolve(holder[name], name)
            if value is None:
                continue
            try:
                number = math.ceil(Decimal(str(value)))
            except (ArithmeticError, ValueError):
                raise NotTaken(f"{name}: must be a number") from None
            if not 1 <= number <= most:
                raise NotTaken(f"{name}: must be a number from 1 to {most}")
            found[ours] = number
        return found

    def _text(self, holder: Mapping[str, Any], *names: str) -> str | None:
        """Returns the first of some members that is stated, as a text."""
        for name in names:
            value = self._resolve(holder.get(name), name)
            if isinstance(value, dict | list):
                raise NotTaken(f"{name}: must be a text")
            if value is not None and str(value).strip():
                return str(value).strip()
        return None

    def _resolve(self, value: Any, member: str) -> Any:
        if not isinstance(value, str) or not value.startswith(_ENVIRONMENT):
            return value
        name = value.removeprefix(_ENVIRONMENT)
        if not self._environ.get(name):
            raise NotTaken(f"{member}: the environment variable {name} is not set")
        return self._environ[name]

    def _first(self, *names: str) -> str | None:
        return next((value for name in names if (value := self._environ.get(name))), None)


_DIALECTS: Final[Mapping[str, str]] = {
    "anthropic": "anthropic", "google-ai-studio": "gemini", "azure": "azure",
    "amazon-bedrock": "bedrock", "google-vertex": "vertex",
}  # fmt: skip
_CLOUDS: Final = frozenset(("azure", "bedrock", "vertex"))


def _split_model(model: str, provider: str | None) -> tuple[_Kind, str]:
    """Returns the provider in a model's path, and the model's name there."""
    prefix, slash, rest = model.partition("/")
    if provider is None and slash and prefix in _KINDS:
        provider, model = prefix, rest
    elif provider is not None:
        model = model.removeprefix(f"{provider}/")
    elif slash:
        provider = prefix
    else:
        provider = next((name for name, pattern in _BARE if pattern.match(model)), None)
    if provider is None:
        raise NotTaken(f"litellm_params.model: the provider of {model!r} is not stated")
    kind = _KINDS.get(provider)
    if kind is None:
        raise NotTaken(f"the provider {provider!r} has no counterpart")
    while match := _ROUTES.match(model):
        model = model[match.end() :]
    if kind.adds and not ("/" in model or "*" in model or model.startswith("claude")):
        model = f"{kind.adds}{model}"
    return kind, model


def _read_price(
    members: Mapping[str, Any],
) -> tuple[dict[str, Any] | None, tuple[dict[str, Any], ...]]:
    """Returns the price that an entry states; without the rates that it leaves to the catalogue."""
    stated = {name: _unmark(value) for name, value in members.items() if _is_price(name)}
    if not any(value is not None for value in stated.values()):
        return None, ()
    pricing, lines = read_stated_price({**stated, "mode": members["mode"]})
    is_text = _OUTPUTS[members["mode"]] == "text"
    for rate, direction in (("prompt", "input_"), ("completion", "output_")):
        if (
            is_text
            and pricing.get(rate) == "0"
            and not any(name.startswith(direction) for name in stated)
        ):
            del pricing[rate]
    return pricing, lines


def _unmark(value: Any) -> Any:
    """Returns a value without the lines of its elements."""
    if isinstance(value, dict):
        return {name: _unmark(each) for name, each in value.items()}
    return [_unmark(each.value) for each in value] if isinstance(value, list) else value


def _read_routing(params: Mapping[str, Any]) -> dict[str, int]:
    """Returns the priority and the weight of a deployment; the lowest ``order`` is asked first."""
    order, weight = read_share(params.get("order"), least=0), read_share(params.get("weight"))
    priority = {} if order is None else {"priority": _FIRST - order}
    return priority if weight is None else {**priority, "weight": weight}


def _read_length(facts: Mapping[str, Any], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) and 0 < value < 10**12 else None


# Settings.


def _read_settings(document: Entry, found: GatewayFile) -> None:
    """Reads aliases and fallbacks, and leaves out every other setting by its name."""
    for section, members in document.items():
        line = document.lines[section]
        if section in ("model_list", "credential_list"):
            continue
        if not isinstance(members, Entry) or not members:
            found.leave_out(line, section, _ADVICE.get(section, "no counterpart"))
            continue
        for name, value in members.items():
            at, path = members.lines[name], f"{section}.{name}"
            if section in _MAPS and name == "model_group_alias" and isinstance(value, Entry):
                _read_aliases(value, path, found)
            elif section in _MAPS and name == "fallbacks" and isinstance(value, list):
                _read_fallbacks(value, path, found)
            elif section in _MAPS and name == "default_fallbacks" and isinstance(value, list):
                found.fallbacks["*"] = (at, [str(each.value) for each in value])
            else:
                reason = _ADVICE.get(path) or _ADVICE.get(section, "no counterpart")
                found.leave_out(at, path, reason)


def _read_aliases(members: Entry, path: str, found: GatewayFile) -> None:
    for name, value in members.items():
        line = members.lines[name]
        target = value.get("model") if isinstance(value, Entry) else value
        if not isinstance(target, str):
            found.leave_out(line, f"{path}.{name}", "it names no model")
            continue
        found.aliases[name] = (line, target)
        if isinstance(value, Entry):
            others = [other for other in value if other != "model"]
            found.leave_members(line, f"{path}.{name}", others)


def _read_fallbacks(listed: list[Listed], path: str, found: GatewayFile) -> None:
    for each in listed:
        for name, targets in each.value.items() if isinstance(each.value, Entry) else ():
            line = each.value.lines[name]
            if not isinstance(targets, list):
                found.leave_out(line, f"{path}.{name}", "it must be a list of models")
                continue
            names = [target.value for target in targets]
            if not all(isinstance(target, str) for target in names):
                found.leave_out(line, f"{path}.{name}", "fallbacks with parameters of their own")
                names = [target for target in names if isinstance(target, str)]
            found.fallbacks[name] = (line, names)
        if not isinstance(each.value, Entry):
            found.leave_out(each.line, path, "it must be an object")
