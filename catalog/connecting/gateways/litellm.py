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
    ACCESS,
    ANY_DEFAULT,
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
from catalog.connecting.gateways.documents import Entry, Items, UnreadableGateway, read_yaml
from catalog.sync.documents import InvalidRow
from catalog.sync.litellm import OUTPUTS, PROVIDERS, is_price, read_stated_price
from config.credentials import NO_SECRET, Secret
from config.egress.rules import MOST_SECONDS

_ENVIRONMENT: Final = "os.environ/"
# Providers that speak OpenAI's format, with the address that LiteLLM has for them.
_ADDRESSES: Final[Mapping[str, str]] = {
    "openrouter": "https://openrouter.ai/api/v1",
    "ollama": "http://localhost:11434", "ollama_chat": "http://localhost:11434",
    "nvidia_nim": "https://integrate.api.nvidia.com/v1",
    "dashscope": "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    "volcengine": "https://ark.cn-beijing.volces.com/api/v3",
    "github": "https://models.inference.ai.azure.com",
    "novita": "https://api.novita.ai/v3/openai",
    "baseten": "https://inference.baseten.co/v1",
    "hyperbolic": "https://api.hyperbolic.xyz/v1",
    "nscale": "https://inference.api.nscale.com/v1",
    "featherless_ai": "https://api.featherless.ai/v1",
    "friendliai": "https://api.friendli.ai/serverless/v1",
    "vercel_ai_gateway": "https://ai-gateway.vercel.sh/v1",
    "wandb": "https://api.inference.wandb.ai/v1",
    **dict.fromkeys(("lm_studio", "hosted_vllm", "vllm", "openai_like", "custom_openai",
                     "llamafile", "xinference", "litellm_proxy"), ""),
}  # fmt: skip
# The environment variables of keys that are not named after their provider.
_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "text-completion-openai": ("OPENAI_API_KEY",),
    "bedrock": ("AWS_BEARER_TOKEN_BEDROCK",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "cohere_chat": ("COHERE_API_KEY",),
    "perplexity": ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"),
    "fireworks_ai": ("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY"),
    "together_ai": ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY"),
}
# The environment variables of addresses that are not named after their provider.
_BASES: Final[Mapping[str, tuple[str, ...]]] = {
    "openai": ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    "ollama_chat": ("OLLAMA_API_BASE",),
}
# Names without a provider, which LiteLLM looks up in its own list.
_BARE: Final = (
    ("openai", "gpt-|chatgpt-|o[134](?:-|\\Z)|text-embedding-|dall-e|whisper-|tts-"),
    ("anthropic", "claude-"),
    ("vertex_ai", "gemini-"),
)
# Parts of a model's path that choose a route of LiteLLM's, or the form of a model of one's own at
# Bedrock; and routes to interfaces of clouds that no dialect has.
_ROUTES: Final = re.compile(
    r"(?:(?:converse|converse_like|invoke|responses|chat_completions|o_series|gpt5_series"
    r"|model_router)/)+|(?:llama|deepseek_r1|qwen[23]|openai|moonshot|nova(?:-2)?)/(?=arn:aws)"
)
_OTHER_ROUTES: Final = re.compile(
    r"agents?|agentcore|agent_engine|async_invoke|claude_platform|mantle"
)
_REGION: Final = re.compile(r"([a-z]{2}(?:-[a-z]+)+-[0-9]{1,2})/")
# Fireworks' names begin so; LiteLLM adds it to short ones.
_FIREWORKS: Final = "accounts/fireworks/"
# Prices of time and of characters, of which those of speech and transcriptions alone are made: for
# text, LiteLLM means the seconds that an answer takes.
_UNITS: Final = re.compile(r"(?:in|out)put_cost_per_(?:second|character)")
_UNIT_OUTPUTS: Final = frozenset(("speech", "transcription"))
# The outputs without tokens, and the rates of whole answers.
_WORDLESS: Final = frozenset(("embeddings", "rerank"))
_WHOLE: Final = ("image_output", "request")
_TOKENS: Final = {"prompt": "input_cost_per_token", "completion": "output_cost_per_token"}
_LIMITS: Final = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute"}
_TIMES: Final = {"timeout": "headers", "stream_timeout": "first_event"}
_OF_STREAMS: Final = "timeout: it bounds streams, not plain answers, see docs/time-limits.md"
_LENGTHS: Final = {
    "max_input_tokens": "context_length", "max_output_tokens": "max_completion_tokens",
}  # fmt: skip
_LONGEST: Final = 10**12
_GROUPS: Final[Mapping[str, frozenset[str]]] = {
    "litellm_params": frozenset(
        ("model", "custom_llm_provider", "api_key", "api_base", "base_url", "api_version",
         "litellm_credential_name", "aws_region_name", "aws_access_key_id",
         "aws_secret_access_key", "aws_session_token", "vertex_project", "vertex_ai_project",
         "vertex_location", "vertex_ai_location", "vertex_credentials", "base_model", "order",
         "weight", *_LIMITS, *_TIMES)
    ),
    "model_info": frozenset(("mode", "base_model", "blocked", *_LENGTHS, *_LIMITS)),
}  # fmt: skip
_CREDENTIAL: Final = ("credential_name", "credential_values")
_TEAMS: Final = ("model_info.access_groups", "model_info.team_id")
_SHARES: Final = {"order": "priority", "weight": "weight"}
_TEXT: Final = "text"
_FIRST: Final = 1_000
_INCLUDED: Final = "put the included files' model_list into this one"
# What a person does instead. Other members have no counterpart.
_ADVICE: Final[Mapping[str, str]] = {
    "general_settings.master_key": "programs that use it go on with import_keys, column key",
    "general_settings.database_url": "it has hashes of keys; import_keys takes the keys themselves",
    "litellm_settings.drop_params": "parameters that a model lacks are dropped already",
    "litellm_settings.callbacks": "see docs/broadcast.md",
    "litellm_settings.success_callback": "see docs/broadcast.md",
    "router_settings.routing_strategy": SHARED,
    "include": _INCLUDED,
    "environment_variables": "set them where Causeway runs",
    "guardrails": "see docs/guardrails.md",
}


def read_config(text: str, environ: Mapping[str, str], servers: Servers) -> GatewayFile:
    """Returns the content of a file; raises :class:`UnreadableGateway`."""
    document, found = read_yaml(text), GatewayFile()
    models = document.get("model_list")
    if not isinstance(models, Items):
        if models is None and "include" in document:
            raise UnreadableGateway(f"Line {document.lines['include']}: {_INCLUDED}.")
        line = document.lines.get("model_list", 1)
        raise UnreadableGateway(f"Line {line}: model_list must be a list of models.")
    credentials, named = _read_credentials(document, found), []
    for line, entry in models.lined():
        name = entry.get("model_name") if isinstance(entry, Entry) else None
        if not isinstance(name, str) or not name:
            raise UnreadableGateway(
                f"Line {line}: an entry of model_list must be an object with model_name."
            )
        routing: Mapping[str, int] = {}
        try:
            members = _Members(entry, credentials, environ)
            deployment = _read_deployment(members, line, name, servers, found)
            found.add(deployment)
            routing = deployment.routing
        except (NotTaken, InvalidRow) as exc:
            found.leave_out(line, name, str(exc))
        others = list(_find_others(entry))
        found.leave_members(line, name, (each for each in others if each not in _TEAMS))
        found.leave_members(line, name, (each for each in others if each in _TEAMS), ACCESS)
        stated = entry.get("litellm_params")
        for member, value in stated.items() if isinstance(stated, Entry) else ():
            if member == "litellm_credential_name":
                named.append(value)
            elif member in _SHARES:
                reason = f"litellm_params.{member}: {SHARED}"
                found.leave_out(line, name, reason, is_share=_SHARES[member] in routing)
    for name, credential in credentials.items():
        if name not in named:
            found.leave_out(credential.line, name, "no entry of model_list names the credential")
    _read_settings(document, found)
    return found


def _read_credentials(document: Entry, found: GatewayFile) -> dict[str, Entry]:
    """Returns the elements of ``credential_list`` by their names, of which the first ones count."""
    credentials: dict[str, Entry] = {}
    listed = document.get("credential_list")
    for line, entry in listed.lined() if isinstance(listed, Items) else ():
        stated = entry if isinstance(entry, Entry) else {}
        name, values = map(stated.get, _CREDENTIAL)
        if not isinstance(name, str) or not isinstance(values, Entry):
            found.leave_out(line, "credential_list", "it has no name, or no values")
        elif name in credentials:
            found.leave_out(line, name, "the name has a credential already; the first one counts")
        else:
            credentials[name] = entry
            known = _GROUPS["litellm_params"]
            others = [f"credential_values.{each}" for each in values if each not in known]
            others += (each for each in entry if each not in _CREDENTIAL)
            found.leave_members(line, name, others)
    return credentials


def _find_others(entry: Entry) -> Iterator[str]:
    """Yields the members of an entry that become nothing."""
    yield from (name for name in entry if name not in ("model_name", *_GROUPS, *_LIMITS))
    info = entry.get("model_info")
    mode = info.get("mode") if isinstance(info, Entry) else None
    output = OUTPUTS.get(mode, _TEXT) if isinstance(mode, str) else _TEXT
    groups = [each for group in _GROUPS if isinstance(each := entry.get(group), Entry)]
    # Beside a rate of tokens, the price of a text has none of a picture that it reads.
    has_tokens = output == _TEXT and any(each.get(_TOKENS["prompt"]) for each in groups)
    for group, known in _GROUPS.items():
        members = entry.get(group)
        members = members if isinstance(members, Entry) else {}
        for name, value in members.items():
            is_unread = has_tokens and bool(value) and name == "input_cost_per_image"
            if is_unread or (name not in known and not _charges(name, output)):
                yield f"{group}.{name}"


def _charges(name: str, output: str) -> bool:
    """Returns whether a price for an output is made of a member."""
    return is_price(name) and (output in _UNIT_OUTPUTS or not _UNITS.fullmatch(name))


class _Members(dict[str, Any]):
    """The members of an entry of ``model_list``, with environment variables put in.

    ``litellm_params`` come before the credential that they name, and that before ``model_info``.
    Raises :class:`NotTaken` for a variable that is not set.
    """

    def __init__(
        self, entry: Entry, credentials: Mapping[str, Entry], environ: Mapping[str, str]
    ) -> None:
        params, info = (
            stated if isinstance(stated := entry.get(group), Entry) else {} for group in _GROUPS
        )
        name, named = params.get("litellm_credential_name"), {}
        if isinstance(name, str):
            if name not in credentials:
                raise NotTaken(f"credential_list has no {name!r}")
            named = credentials[name]["credential_values"]
        of_params, of_info = _GROUPS.values()
        for values, names in (
            (entry, _LIMITS),
            (info, of_info),
            (named, of_params),
            (params, of_params),
        ):
            for member, value in values.items():
                if value is not None and (member in names or is_price(member)):
                    self[member] = _resolve(value, member, environ)
        self._environ = environ

    def text(self, *names: str) -> str | None:
        """Returns the first of some members that is stated, as a text."""
        for name in names:
            value = self.get(name)
            if isinstance(value, dict | list):
                raise NotTaken(f"{name}: must be a text")
            if value is not None and str(value).strip():
                return str(value).strip()
        return None

    def numbers(self, names: Mapping[str, str], *, most: int = 2**31 - 1) -> dict[str, int]:
        """Returns whole numbers by our names; fractions are rounded up."""
        found: dict[str, int] = {}
        for name in filter(self.__contains__, names):
            try:
                number = Decimal(str(self[name]))
                # The size is checked before the digits are written out.
                is_possible = 0 < number <= most
            except (ArithmeticError, ValueError):
                raise NotTaken(f"{name}: must be a number") from None
            if not is_possible:
                raise NotTaken(f"{name}: must be a number from 1 to {most}")
            found[names[name]] = math.ceil(number)
        return found

    def address(self, provider: str) -> str | None:
        """Returns the address that the entry or the environment has for a provider."""
        variables = _BASES.get(provider, (f"{provider.upper()}_API_BASE",))
        return self.text("api_base", "base_url") or self.first(*variables)

    def first(self, *variables: str) -> str | None:
        """Returns the first of some environment variables that is set."""
        return next((value for name in variables if (value := self._environ.get(name))), None)


def _resolve(value: Any, member: str, environ: Mapping[str, str]) -> Any:
    if not isinstance(value, str) or not value.startswith(_ENVIRONMENT):
        return value
    name = value.removeprefix(_ENVIRONMENT)
    if not environ.get(name):
        raise NotTaken(f"{member}: the environment variable {name} is not set")
    return environ[name]


class _Source(NamedTuple):
    """The server of a deployment, and what LiteLLM calls its provider.

    ``is_given`` says that the entry or the environment names the address.
    """

    provider: str
    server: GatewayServer
    is_given: bool

    @property
    def variables(self) -> tuple[str, ...]:
        """Returns the variables with the key; a server that is not the provider's gets none."""
        known = PROVIDERS.get(self.provider)
        if self.server.family != ("" if known is None else known.slug):
            return ()
        if known is None and self.is_given and _ADDRESSES[self.provider].startswith("https:"):
            return ()
        return self._usual_variables

    @property
    def _usual_variables(self) -> tuple[str, ...]:
        return _VARIABLES.get(self.provider, (f"{self.provider.upper()}_API_KEY",))

    def find_unsent(self, members: _Members) -> str | None:
        """Returns the variable whose key LiteLLM sends to the server, and the import does not."""
        names = () if self.variables else self._usual_variables
        return next(filter(members.first, names), None)

    @property
    def missing(self) -> str:
        """Returns what a deployment without a key lacks."""
        if self.server.dialect == "vertex":
            return "vertex_credentials must be the JSON of a service account, not its path"
        unset = f", and {' or '.join(self.variables)} is not set" if self.variables else ""
        return f"api_key is missing{unset}"


def _read_deployment(
    members: _Members, line: int, name: str, servers: Servers, found: GatewayFile
) -> Deployment:
    """Returns the deployment of an entry; raises :class:`NotTaken`."""
    model, mode = members.text("model"), members.get("mode", "chat")
    if model is None:
        raise NotTaken("litellm_params.model is missing")
    if not isinstance(mode, str) or mode not in OUTPUTS:
        raise NotTaken("no route serves the model_info.mode")
    if members.get("blocked") is True:
        raise NotTaken("the deployment is blocked")
    provider, upstream = _split_model(model, members.text("custom_llm_provider"))
    source = _find_source(provider, members, servers)
    route, slash, _ = upstream.partition("/")
    if source.server.is_cloud and slash and _OTHER_ROUTES.fullmatch(route):
        raise NotTaken(f"litellm_params.model: the route {route!r} has no counterpart")
    if source.server.dialect == "bedrock" and (match := _REGION.match(upstream)):
        members.setdefault("aws_region_name", match[1])
        upstream = upstream[match.end() :]
    secret, place = _read_secret(members, source)
    pricing, lines = _read_price(members, mode)
    order, weight = (read_share(members.get(share), least=0) for share in _SHARES)
    shares = {"priority": None if order is None else _FIRST - order, "weight": weight or None}
    deployment = Deployment(
        line=line,
        name=name,
        server=source.server,
        upstream_id=upstream,
        secret=secret,
        place=place,
        output=OUTPUTS[mode] if "mode" in members else None,
        pricing=pricing,
        lines=lines,
        limits=members.numbers(_LIMITS),
        timeouts=members.numbers(_TIMES, most=MOST_SECONDS),
        routing={share: value for share, value in shares.items() if value is not None},
        missing=source.missing,
        hint=str(members.get("base_model") or ""),
        **members.numbers(_LENGTHS, most=_LONGEST),
    )
    unsent = source.find_unsent(members)
    if unsent and secret == NO_SECRET and members.text("api_key") is None:
        found.leave(deployment, f"its key: {unsent} is not sent to this address; state api_key")
    if _TIMES["timeout"] in deployment.timeouts:
        found.leave(deployment, _OF_STREAMS)
    return deployment


def _split_model(model: str, provider: str | None) -> tuple[str, str]:
    """Returns the provider in a model's path, and the model's name there."""
    prefix, slash, rest = model.partition("/")
    if provider is not None:
        model = model.removeprefix(f"{provider}/")
    elif slash:
        provider, model = prefix, rest
    else:
        provider = next((name for name, pattern in _BARE if re.match(pattern, model)), None)
    if provider is None:
        raise NotTaken(f"litellm_params.model: the provider of {model!r} is not stated")
    if provider not in PROVIDERS and provider not in _ADDRESSES:
        raise NotTaken(f"the provider {provider!r} has no counterpart")
    if match := _ROUTES.match(model):
        model = model[match.end() :]
    if provider == "fireworks_ai" and not model.startswith("accounts/") and "#" not in model:
        return provider, f"{_FIREWORKS}{'routers' if model.endswith('-fast') else 'models'}/{model}"
    known = PROVIDERS.get(provider)
    return provider, name_googles(model) if known is not None and known.adds else model


def _find_source(provider: str, members: _Members, servers: Servers) -> _Source:
    known = PROVIDERS.get(provider)
    server = None if known is None else servers[known.slug]
    if server is not None and server.is_cloud:
        if server.dialect != "azure" and members.text("api_base", "base_url") is not None:
            raise NotTaken(f"api_base: {server.family} is called at its own address alone")
        return _Source(provider, server, is_given=False)
    address = members.address(provider)
    base_url = (address or _ADDRESSES.get(provider, "")).rstrip("/")
    if not base_url and server is None:
        raise NotTaken("api_base: the address of the server is missing")
    if provider.startswith("ollama") and not base_url.endswith("/v1"):
        base_url += "/v1"
    dialect = "openai" if server is None else server.dialect
    if base_url and dialect == "anthropic":
        # LiteLLM adds the whole path.
        base_url = f"{base_url.removesuffix('/messages').removesuffix('/v1')}/v1"
    if base_url or server is None:
        server = locate(dialect, base_url, servers)
    return _Source(provider, server, is_given=address is not None)


def _read_secret(members: _Members, source: _Source) -> tuple[Secret | None, dict[str, str]]:
    """Returns the secret of a deployment, and the place that a cloud's must state."""
    match source.server.dialect:
        case "bedrock":
            return _read_bedrock(members, source)
        case "vertex":
            return _read_vertex(members)
    key = members.text("api_key") or members.first(*source.variables)
    if source.server.dialect != "azure":
        is_public = _ADDRESSES.get(source.provider, "").startswith("https:") and not source.is_given
        is_keyless = not source.server.family and not is_public
        return read_secret(key, is_keyless=is_keyless), {}
    address = members.address(source.provider)
    if address is None:
        raise NotTaken("api_base: the address of the Azure resource is missing")
    place = {"endpoint_url": address}
    version = read_version(members.text("api_version") or members.first("AZURE_API_VERSION"))
    if key is None:
        return None, place
    return write_secret(place, api_key=key, api_version=version), place


def _read_bedrock(members: _Members, source: _Source) -> tuple[Secret | None, dict[str, str]]:
    region = members.text("aws_region_name")
    region = region or members.first("AWS_REGION_NAME", "AWS_REGION", "AWS_DEFAULT_REGION")
    if region is None:
        raise NotTaken("aws_region_name is missing, and AWS_REGION is not set")
    place = {"region": region}
    names = ("access_key_id", "secret_access_key", "session_token")
    key = {name: members.text(f"aws_{name}") for name in names}
    if key["access_key_id"] is None:
        token = members.text("api_key") or members.first(*source.variables)
        if token is not None:
            return write_secret(place, api_key=token), place
        key = {name: members.first(f"AWS_{name.upper()}") for name in names}
    if key["access_key_id"] is None or key["secret_access_key"] is None:
        return None, place
    return write_secret(place, **key), place


def _read_vertex(members: _Members) -> tuple[Secret | None, dict[str, str]]:
    project = members.text("vertex_project", "vertex_ai_project")
    location = members.text("vertex_location", "vertex_ai_location")
    stated = {
        "project_id": project or members.first("VERTEXAI_PROJECT"),
        "location": location or members.first("VERTEXAI_LOCATION"),
    }
    place = {name: value for name, value in stated.items() if value is not None}
    account: Any = members.get("vertex_credentials")
    if not isinstance(account, Entry):
        try:
            account = json.loads(members.text("vertex_credentials") or "")
        except (ValueError, RecursionError):
            return None, place
    place = {"location": "us-central1", **place}
    return write_secret(place, service_account=account), place


def _read_price(
    members: Mapping[str, Any], mode: str
) -> tuple[dict[str, Any] | None, tuple[dict[str, Any], ...]]:
    """Returns the price that an entry states; without the rates that it leaves to the catalogue."""
    output = OUTPUTS[mode]
    stated = {name: value for name, value in members.items() if _charges(name, output)}
    if not stated:
        return None, ()
    pricing, lines = read_stated_price({**stated, "mode": mode})
    # A rate of a whole answer, such as a picture or a second, leaves nothing to those of tokens.
    is_whole = output != _TEXT and (
        any(line["billable"] != "prompt" for line in lines)
        or any(pricing.get(rate, "0") != "0" for rate in _WHOLE)
    )
    if output not in _WORDLESS and not is_whole and "tiered_pricing" not in stated:
        for rate, name in _TOKENS.items():
            if name not in stated and pricing.get(rate) == "0":
                del pricing[rate]
    return pricing, lines


# Settings.


def _read_settings(document: Entry, found: GatewayFile) -> None:
    """Reads aliases and fallbacks, and leaves out every other setting by its name."""
    for section, members in document.items():
        if section in ("model_list", "credential_list"):
            continue
        if not isinstance(members, Entry) or not members:
            advice = _ADVICE.get(section, "no counterpart")
            found.leave_out(document.lines[section], section, advice)
            continue
        is_map = section in ("router_settings", "litellm_settings")
        for name, value in members.items():
            line, path = members.lines[name], f"{section}.{name}"
            if is_map and name == "model_group_alias" and isinstance(value, Entry):
                _read_aliases(value, path, found)
            elif is_map and name == "fallbacks" and isinstance(value, Items):
                _read_fallbacks(value, path, found)
            elif is_map and name == "default_fallbacks" and isinstance(value, Items):
                _add_fallbacks(ANY_DEFAULT, value, line, path, found)
            else:
                reason = _ADVICE.get(path) or _ADVICE.get(section, "no counterpart")
                found.leave_out(line, path, reason)


def _read_aliases(members: Entry, path: str, found: GatewayFile) -> None:
    for name, value in members.items():
        line, others = members.lines[name], dict(value) if isinstance(value, Entry) else {}
        target = others.pop("model", None if others else value)
        if isinstance(target, str):
            found.aliases[name] = (line, target)
            found.leave_members(line, f"{path}.{name}", others)
        else:
            found.leave_out(line, f"{path}.{name}", "it names no model")


def _read_fallbacks(listed: Items, path: str, found: GatewayFile) -> None:
    for line, each in listed.lined():
        if not isinstance(each, Entry):
            found.leave_out(line, path, "it must be an object")
            continue
        for name, targets in each.items():
            if isinstance(targets, Items):
                _add_fallbacks(name, targets, each.lines[name], f"{path}.{name}", found)
            else:
                found.leave_out(each.lines[name], f"{path}.{name}", "it must be a list of models")


def _add_fallbacks(name: str, targets: Items, line: int, path: str, found: GatewayFile) -> None:
    plain = [target for target in targets if isinstance(target, str)]
    if len(plain) < len(targets):
        found.leave_out(line, path, "fallbacks with parameters of their own")
    if name in found.fallbacks:
        found.leave_out(line, path, "the name has fallbacks already, the first of which count")
    found.fallbacks.setdefault(name, (line, plain))
