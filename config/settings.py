"""Reads all settings from the environment; ``docs/settings.md`` describes them.

With ``DATABASE_URL=embedded``, and without any variable, the service runs in embedded mode: it has
its own PostgreSQL and generated secrets under ``DATA_DIR``. With another ``DATABASE_URL``, a
missing secret stops the start.
"""

from __future__ import annotations

import base64
import fcntl
import importlib.metadata
import importlib.util
import os
import secrets
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.urls import reverse_lazy

from billing.topups.chains import Chain, parse_chains
from config import environment
from config.egress.addresses import EgressPolicy, parse_pinned_hosts, parse_proxy
from config.egress.rules import InvalidAuthorities, check_authorities
from config.environment import Environment, find_misspelt, parse_credential_keys
from config.local.bootstrap import DISTRIBUTION, install_command
from config.local.demo import SIMULATOR_DIR
from config.local.entry import default_data_dir
from config.local.postgres import has_programs
from config.server.connections.peers import parse_proxies
from config.server.regions import parse_region_hosts
from config.telemetry.parsing import find_receiver, parse_access_log, parse_organizations
from inference.archive.plans import NOWHERE, BucketPlace, Place, parse_place, parse_retention

BASE_DIR = Path(__file__).resolve().parent.parent
env = Environment()
VERSION = importlib.metadata.version(DISTRIBUTION)

DATA_DIR = Path(env.str("DATA_DIR", default=str(default_data_dir()))).expanduser().absolute()
_database_url = env.str("DATABASE_URL", default="").strip()
EMBEDDED = _database_url in ("", "embedded")
# The public price lists that catalog.sync reads.
_PRICE_LISTS = ("litellm", "openrouter", "models.dev")
_SWITCHES = {
    **dict.fromkeys(("off", "false", "no", "0"), False),
    **dict.fromkeys(("on", "true", "yes", "1"), True),
}


def _switch(name: str, *, default: bool) -> bool:
    text = env.str(name, default="").strip().lower() or str(default).lower()
    if text not in _SWITCHES:
        raise ImproperlyConfigured(f"{name} must be on or off.")
    return _SWITCHES[text]


def _number(name: str, default: float, *, minimum: float = 0.001) -> float:
    """Reads a number; raises :class:`ImproperlyConfigured` with the variable's name."""
    text = env.str(name, default="").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a number.") from None
    if not minimum <= value < 10**12:
        raise ImproperlyConfigured(f"{name} must be at least {minimum}.")
    return value


def _integer(name: str, default: int, *, minimum: int = 1) -> int:
    """Reads a whole number: a fraction would become the 0 that often means the opposite."""
    value = _number(name, default, minimum=minimum)
    if value != int(value):
        raise ImproperlyConfigured(f"{name} must be a whole number.")
    return int(value)


def _buffer_size(name: str, default: int, *, at_least: tuple[int, ...]) -> int:
    """Reads the size of a buffer. The default grows with what the buffer must hold."""
    least = max(at_least)
    return _integer(name, max(default, least), minimum=least)


def _port(name: str) -> int | None:
    if env.str(name, default="").startswith("tcp://"):
        return None  # Kubernetes sets METRICS_PORT so for a service that is called "metrics"
    number = _integer(name, 0, minimum=0)
    if number > 65_535:
        raise ImproperlyConfigured(f"{name} must be a port from 1 to 65535.")
    return number or None


def _parse(parse: Callable[[Any], Any], value: Any, name: str) -> Any:
    """Returns a parsed value; names the variable if it is refused."""
    try:
        return parse(value)
    except ValueError as exc:
        raise ImproperlyConfigured(f"{name}: {exc}.") from None


def _names(name: str, default: list[str]) -> list[str]:
    """Returns the parts of a comma list without the spaces and line ends around them."""
    parts = [text.strip() for text in env.list(name, default=default)]
    return [text for text in parts if text]


def _parse_list(name: str, default: list[str], parse: Callable[[Any], Any], form: str) -> Any:
    """Returns the parsed parts of a comma list; says its form if one of them is refused."""
    parts = [text.strip() for text in env.list(name, default=default)]
    return _parse(parse, parts, f"{name} is a comma list of {form}")


def _authorities(name: str) -> str | None:
    """Reads the path of a file of certificates; refuses one that no connection can use."""
    path = env.str(name, default="").strip()
    # The demo makes its file after the settings are read.
    if not path or (path == str(DATA_DIR / SIMULATOR_DIR / "ca.pem") and not os.path.exists(path)):
        return path or None
    try:
        if not Path(path).is_file():
            raise ImproperlyConfigured(f"{name}: there is no file {path}.")
        check_authorities(path)
    except OSError as exc:
        raise ImproperlyConfigured(f"{name}: {path} cannot be read: {exc.strerror}.") from None
    except InvalidAuthorities as exc:
        raise ImproperlyConfigured(f"{name}: {path}: {exc}") from None
    return path


def _choice(name: str, default: str, choices: tuple[str, ...]) -> str:
    value = str(env.str(name, default=default))
    if value not in choices:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(choices)}.")
    return value


def _generate_secret(name: str, make: Callable[[], str]) -> str:
    """Returns a secret of embedded mode; the first call generates it and stores it in a file.

    Only the owner can read the file. Returns nothing where the environment must have the secret.
    """
    if not (EMBEDDED or DEBUG):
        return ""
    path = DATA_DIR / name.lower()
    DATA_DIR.mkdir(parents=True, exist_ok=True, mode=0o711)
    if path.exists() and (value := path.read_text().strip()):
        return value
    # Another process may write it now; a full disk, or a kill, has left it empty.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (value := file.read().strip()):
            value = make()
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
    return value


def _secret_list(name: str) -> list[str]:
    """Reads a comma list of secrets; raises :class:`ImproperlyConfigured` for a short one."""
    values = [text.strip() for text in env.str(name, default="").strip().split(",")]
    if values == [""]:
        return []
    if any(len(value) < 32 for value in values):
        raise ImproperlyConfigured(
            f"{name} is a comma list; each part needs at least 32 random characters."
        )
    return values


def _price_lists(name: str) -> dict[str, str]:
    """Reads a comma list of ``SOURCE=URL``, at most one for each source."""
    found: dict[str, str] = {}
    for item in env.list(name, default=[]):
        source, _, url = item.strip().partition("=")
        if source not in _PRICE_LISTS or source in found:
            raise ImproperlyConfigured(
                f"{name} is a comma list of SOURCE=URL, at most one for each of "
                f"{', '.join(_PRICE_LISTS)}."
            )
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc:
            raise ImproperlyConfigured(
                f"{name} needs an https:// URL without a user name for {source}."
            )
        found[source] = url
    return found


def _archive(name: str, *, retention: dict[str, int]) -> Place | None:
    """Reads where data go that leave; without a place they leave only if the variable says none."""
    text = env.str(name, default="").strip()
    place: Place | None = _parse(parse_place, text, name)
    if retention and not text:
        raise ImproperlyConfigured(
            f"RETENTION_DAYS lets data leave, but {name} is not set. Set it to a directory or to "
            f"s3://BUCKET/PREFIX, or to {NOWHERE} to drop the data without an archive."
        )
    if retention and place and importlib.util.find_spec("pyarrow") is None:
        raise ImproperlyConfigured(
            f"{name} needs pyarrow, which is not installed: {install_command('parquet')}"
        )
    if isinstance(place, BucketPlace) and importlib.util.find_spec("botocore") is None:
        raise ImproperlyConfigured(
            f"{name} is a bucket, which needs botocore: {install_command('s3')}"
        )
    return place


def _chains() -> dict[int, Chain]:
    try:
        return parse_chains(
            rpc_urls=env.str("CHAIN_RPC_URLS", default=""),
            tokens=env.str("CHAIN_TOKENS", default=""),
            recipients=env.str("TOP_UP_RECIPIENTS", default=""),
            confirmations=env.str("CHAIN_CONFIRMATIONS", default=""),
        )
    except ValueError as exc:
        raise ImproperlyConfigured(f"{exc}.") from None


DEBUG = _switch("DEBUG", default=False)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "config.apps.FloorConfig",
    "unfold.apps.BasicAppConfig",
    "unfold.contrib.filters",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "config.console.apps.ConsoleConfig",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "csp",
    "django_otp",
    "config.console.apps.SecondFactorConfig",
    "django_otp.plugins.otp_static",
    "rest_framework",
    "django_filters",
    "pgtrigger",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "accounts",
    "catalog",
    "endpoints",
    "endusers",
    "billing",
    "inference",
]

MIDDLEWARE = [
    "config.server.logs.RequestIdMiddleware",
    "config.server.health.ProbeMiddleware",
    "config.console.perimeter.ConsoleNetworkMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "config.console.site.ConsoleCSPMiddleware",
    "config.console.sign_in.sessions.ConsoleSessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django_otp.middleware.OTPMiddleware",
    "config.server.connections.callers.OperatorConnectionMiddleware",
    "config.audit.context.AuditMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "config.console.site.RefusalMiddleware",
]

ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False
FORMAT_MODULE_PATH = "config.console.formats"

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False

REGION_HOSTS = _parse_list("REGION_HOSTS", [], parse_region_hosts, "name=region")
ALLOWED_HOSTS = [
    *_names("ALLOWED_HOSTS", ["127.0.0.1", "localhost", "[::1]"]),
    *REGION_HOSTS,
]
CSRF_TRUSTED_ORIGINS = _names("CSRF_TRUSTED_ORIGINS", [])
CSRF_FAILURE_VIEW = "config.console.site.csrf_failure"
CORS_ALLOWED_ORIGINS = _names("CORS_ALLOWED_ORIGINS", [])
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_HSTS_SECONDS = _integer("SECURE_HSTS_SECONDS", 0, minimum=0)
SECURE_SSL_REDIRECT = _switch("SECURE_SSL_REDIRECT", default=False)
# Whether browsers use HTTPS for other names of the domain too is not for one of its hosts to say.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
X_FRAME_OPTIONS = "DENY"
ADMIN_REQUIRES_TOTP = _switch("ADMIN_REQUIRES_TOTP", default=False)
# Networks whose addresses no stranger has: loopback, private, link-local, and those of carriers.
CONSOLE_NETWORKS = _parse_list(
    "CONSOLE_NETWORKS",
    [
        "127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7",
        "100.64.0.0/10", "169.254.0.0/16", "fe80::/10",
    ],
    parse_proxies, "addresses or *",
)  # fmt: skip
OTP_TOTP_ISSUER = "Causeway"
# The limits of sign-ins count wrong codes too; a second rule would keep the owner out.
OTP_TOTP_THROTTLE_FACTOR = OTP_STATIC_THROTTLE_FACTOR = 0
# A login without a page to return to leads to the console.
LOGIN_REDIRECT_URL = "admin:index"
SESSION_ENGINE = "config.console.sign_in.sessions"
SESSION_LIFETIME = SESSION_COOKIE_AGE = _integer("SESSION_LIFETIME", 43_200, minimum=60)
SESSION_IDLE_TIMEOUT = _integer("SESSION_IDLE_TIMEOUT", 7_200, minimum=60)
SESSION_COOKIE_HTTPONLY = True
# The demo serves plain HTTP on loopback; production runs behind TLS.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not (EMBEDDED or DEBUG)
APPEND_SLASH = True

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "style-src": ["'self'", "'unsafe-inline'"],
        "script-src": ["'self'"],
        "object-src": ["'none'"],
        "base-uri": ["'self'"],
        "frame-ancestors": ["'none'"],
        "form-action": ["'self'"],
    }
}

# The console's scripts evaluate expressions in the attributes of its own pages.
CONSOLE_CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        **CONTENT_SECURITY_POLICY["DIRECTIVES"],
        "script-src": ["'self'", "'unsafe-eval'"],
    }
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["accounts.authentication.KeyAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["accounts.authentication.DenyAll"],
    "DEFAULT_PARSER_CLASSES": ["config.api.parsing.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "config.api.openapi.Schema",
    "EXCEPTION_HANDLER": "config.api.handler.handle_exception",
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": None,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
    "URL_FORMAT_OVERRIDE": None,
}

# The sections of the reference, those that people need first at the beginning.
_CALLING = {
    "chat-completions": "OpenAI's and OpenRouter's chat: texts, images, files, tools, streams",
    "responses": "OpenAI's Responses",
    "anthropic-messages": "Anthropic's Messages, and the tokens of one",
    "models": "What can be called, by which endpoints and at what price",
    "embeddings": "Vectors of texts and images",
    "images": "Images, and changes of them",
    "tts": "Speech from text",
    "stt": "Text from speech",
    "rerank": "Documents in the order of a question",
    "text-completions": "Texts that go on, by OpenAI's older interface",
    "generations": "What a call has cost, who served it, and what its caller thinks of it",
    "routing": "Which endpoints a call would have, and why not the others",
}
_MANAGING = {
    "api-keys": "Keys, their limits, and their replacement",
    "private-endpoints": "An organization's own deployments: made, validated, activated, watched",
    "private-models": "Models that only the organization sees",
    "private-providers": "Servers that only the organization uses",
    "byok": "Credentials of providers that the organization pays itself",
    "end-users": "The people behind the calls",
    "external-users": "The same by the ids of another system",
    "credits": "The balance, and how it grows",
    "workspaces": "Parts of an organization, their members and budgets",
    "organization": "Members and settings",
    "guardrails": "What is refused, replaced or limited, and for whom",
    "presets": "Bodies of requests that are kept by a name",
    "aliases": "Further names of models",
    "analytics": "Sums of use",
    "observability": "Where metadata and texts are sent",
    "webhooks": "Where events are sent",
    "providers": "Who serves models",
}
SPECTACULAR_SETTINGS = {
    "TAGS": [
        {"name": name, "description": text} for name, text in {**_CALLING, **_MANAGING}.items()
    ],
    "EXTENSIONS_ROOT": {
        "x-tagGroups": [
            {"name": "Call models", "tags": [*_CALLING]},
            {"name": "Manage", "tags": [*_MANAGING]},
        ]
    },
    "TITLE": "Causeway",
    "DESCRIPTION": "A self-hosted LLM gateway. Every call: `Authorization: Bearer <API key>`.",
    # That of the interface, which is not the package's.
    "VERSION": "1.0.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SCHEMA_PATH_PREFIX_TRIM": True,
    "SERVERS": [{"url": "/api/v1"}],
    "OAS_VERSION": "3.1.0",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {
        "persistAuthorization": False,
        "displayOperationId": False,
        # What the members of a body mean is read without a click on each.
        "defaultModelExpandDepth": 2,
    },
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
    "COMPONENT_SPLIT_PATCH": False,
    "ENUM_ADD_EXPLICIT_BLANK_NULL_CHOICE": True,
    "ENUM_NAME_OVERRIDES": {
        "PrivateEndpointStatus": "endpoints.models.PrivateEndpoint.Status",
        "StateEnum": "inference.serializers.HEALTH_STATES",
        "DeclaredRegion": "accounts.models.Region",
        "LimitResetEnum": "accounts.models.LimitReset",
        "PresetStatus": "accounts.models.Preset.Status",
        "MemberRoleInput": "accounts.models.members.WRITTEN_ROLES",
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "inference.faces.openapi.document_inference_routes",
        "config.api.openapi.add_examples",
        "config.api.openapi.add_descriptions",
    ],
}

UPSTREAM_CONNECT_TIMEOUT = _number("UPSTREAM_CONNECT_TIMEOUT", 5.0)
UPSTREAM_HEADERS_TIMEOUT = _number("UPSTREAM_HEADERS_TIMEOUT", 600.0)
UPSTREAM_FIRST_EVENT_TIMEOUT = _number("UPSTREAM_FIRST_EVENT_TIMEOUT", 600.0)
UPSTREAM_IDLE_TIMEOUT = _number("UPSTREAM_IDLE_TIMEOUT", 600.0)
STREAM_KEEPALIVE_INTERVAL = _number("STREAM_KEEPALIVE_INTERVAL", 10.0, minimum=0)
VALIDATION_TIMEOUT = _number("VALIDATION_TIMEOUT", 30.0)
VALIDATION_MAX_AGE = _integer("VALIDATION_MAX_AGE", 86_400)
VALIDATION_PROBES_PARAMETERS = _switch("VALIDATION_PROBES_PARAMETERS", default=True)
VALIDATION_SPEND_LIMIT = _number("VALIDATION_SPEND_LIMIT", 0.05, minimum=0)
WATCH_INTERVAL = _integer("WATCH_INTERVAL", 86_400, minimum=0)
WATCH_SPEND_LIMIT = _number("WATCH_SPEND_LIMIT", 1.0, minimum=0)
WATCH_DISABLES = _switch("WATCH_DISABLES", default=False)
CREDENTIALS_REQUIRE_HOSTS = _choice(
    "CREDENTIALS_REQUIRE_HOSTS", "first-use", ("first-use", "named", "off")
)
MODEL_LISTS = _choice("MODEL_LISTS", "callable", ("callable", "all"))
PRIVATE_ENDPOINT_LIMIT = _integer("PRIVATE_ENDPOINT_LIMIT", 100, minimum=0)
ORGANIZATION_MAX_WORKSPACES = _integer("ORGANIZATION_MAX_WORKSPACES", 200, minimum=0)
ORGANIZATION_MAX_KEYS = _integer("ORGANIZATION_MAX_KEYS", 10_000, minimum=0)
ORGANIZATION_MAX_CREDENTIALS = _integer("ORGANIZATION_MAX_CREDENTIALS", 500, minimum=0)
ORGANIZATION_MAX_GUARDRAILS = _integer("ORGANIZATION_MAX_GUARDRAILS", 200, minimum=0)
ORGANIZATION_MAX_ALIASES = _integer("ORGANIZATION_MAX_ALIASES", 1_000, minimum=0)
ORGANIZATION_MAX_PRESETS = _integer("ORGANIZATION_MAX_PRESETS", 1_000, minimum=0)
ORGANIZATION_MAX_WEBHOOKS = _integer("ORGANIZATION_MAX_WEBHOOKS", 50, minimum=0)
ORGANIZATION_MAX_DESTINATIONS = _integer("ORGANIZATION_MAX_DESTINATIONS", 20, minimum=0)
ORGANIZATION_PATTERN_BYTES = _integer("ORGANIZATION_PATTERN_BYTES", 4 * 1024**2, minimum=0)
MAX_REQUEST_BYTES = _integer("MAX_REQUEST_BYTES", 20 * 1024 * 1024)
# The file of a transcription. Its body may be larger than others, because Base64 is.
MAX_FILE_BYTES = _integer("MAX_FILE_BYTES", 25 * 1024 * 1024)
MAX_UPSTREAM_BYTES = _integer("MAX_UPSTREAM_BYTES", 50 * 1024 * 1024)
ORGANIZATION_CONCURRENCY = _integer("ORGANIZATION_CONCURRENCY", 500)
ORGANIZATION_BUFFERED_BYTES = _buffer_size(
    "ORGANIZATION_BUFFERED_BYTES", 64 * 1024**2, at_least=(MAX_REQUEST_BYTES, MAX_UPSTREAM_BYTES)
)
MAX_BUFFERED_BYTES = _buffer_size(
    "MAX_BUFFERED_BYTES", 256 * 1024 * 1024, at_least=(ORGANIZATION_BUFFERED_BYTES,)
)
EGRESS_POLICY = EgressPolicy(
    allowed_networks=_parse_list(
        "UPSTREAM_ALLOWED_NETWORKS", [], lambda parts: tuple(map(ip_network, parts)), "networks"
    ),
    hosts=_parse_list("UPSTREAM_HOSTS", [], parse_pinned_hosts, "name=address[:port]"),
    ca_bundle=_authorities("UPSTREAM_CA_BUNDLE"),
    proxy=_parse(parse_proxy, env.str("EGRESS_PROXY_URL", default="").strip(), "EGRESS_PROXY_URL"),
    connect_timeout=UPSTREAM_CONNECT_TIMEOUT,
    max_response_bytes=MAX_UPSTREAM_BYTES,
)
RETENTION_DAYS = _parse(
    parse_retention,
    env.str("RETENTION_DAYS", default=""),
    "RETENTION_DAYS is a comma list of kind=days, such as generations=400",
)
ARCHIVE_PLACE = _archive("ARCHIVE_URL", retention=RETENTION_DAYS)
HOLD_TIMEOUT = _integer("HOLD_TIMEOUT", 900)
IDEMPOTENCY_TTL = _integer("IDEMPOTENCY_TTL", 600)
KEPT_ANSWER_BYTES = _integer("KEPT_ANSWER_BYTES", 8 * 1024 * 1024)
ORGANIZATION_KEPT_BYTES = _buffer_size(
    "ORGANIZATION_KEPT_BYTES", 64 * 1024 * 1024, at_least=(KEPT_ANSWER_BYTES,)
)
IO_LOGGING_DAYS = _integer("IO_LOGGING_DAYS", 30, minimum=0)
ORGANIZATION_IO_LOGGING_BYTES = _integer("ORGANIZATION_IO_LOGGING_BYTES", 16 * 1024 * 1024)
IO_LOGGING_BYTES = _buffer_size(
    "IO_LOGGING_BYTES", 64 * 1024 * 1024, at_least=(ORGANIZATION_IO_LOGGING_BYTES,)
)
DRAIN_SECONDS = _number("DRAIN_SECONDS", 5.0, minimum=0)
WORKER_START_TIMEOUT = _number("WORKER_START_TIMEOUT", 60.0, minimum=1)
# The sweeper ends a generation whose worker has written no journal for this many seconds.
HOLD_LEASE = min(HOLD_TIMEOUT, 60)
REQUESTS_PER_MINUTE = _integer("REQUESTS_PER_MINUTE", 0, minimum=0)
BYOK_FEE_PERCENT = env.percentage("BYOK_FEE_PERCENT", "0")
CHAINS = _chains()
BALANCE_ALERT_NANO = env.dollars("BALANCE_ALERT_USD", "5")
GUARDRAIL_ALERT_PERCENT = env.percentage("GUARDRAIL_ALERT_PERCENT", "10")
GRANT_APPROVAL_NANO = env.dollars("GRANT_APPROVAL_LIMIT", "0")
CHANGE_SET_DAYS = _integer("CHANGE_SET_DAYS", 7)
CATALOG_RISE_LIMIT = _integer("CATALOG_RISE_LIMIT", 20, minimum=0)
CATALOG_SYNC = _price_lists("CATALOG_SYNC")
CATALOG_SYNC_APPLIES = _switch("CATALOG_SYNC_APPLIES", default=False)
TOP_UP_LIFETIME = _integer("TOP_UP_LIFETIME", 3600)
TOP_UP_GRACE = _integer("TOP_UP_GRACE", 86_400, minimum=0)
REQUEST_HEAD_TIMEOUT = _number("REQUEST_HEAD_TIMEOUT", 10.0)
REQUEST_BODY_TIMEOUT = _number("REQUEST_BODY_TIMEOUT", 60.0)
MAX_CONNECTIONS = _integer("MAX_CONNECTIONS", 10_000)
MAX_CONNECTIONS_PER_ADDRESS = _integer("MAX_CONNECTIONS_PER_ADDRESS", 1_000)
FORWARDED_ALLOW_IPS = _parse_list(
    "FORWARDED_ALLOW_IPS", ["127.0.0.1", "::1"], parse_proxies, "addresses or *"
)
DEFAULT_FROM_EMAIL = env.mail_address("DEFAULT_FROM_EMAIL")
_mail = env.mail_server("EMAIL_URL", sender=DEFAULT_FROM_EMAIL)
EMAIL_HOST, EMAIL_PORT, EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _mail[:4]
EMAIL_USE_SSL, EMAIL_USE_TLS = _mail[4:]
METRICS_TOKEN = str(env.str("METRICS_TOKEN", default="")).strip()
METRICS_PORT = _port("METRICS_PORT")
METRICS_HOST = str(env.str("METRICS_HOST", default="")).strip()
TRACES_URL = (
    ""
    if _switch("OTEL_SDK_DISABLED", default=False)
    else find_receiver(
        env.str("OTEL_EXPORTER_OTLP_ENDPOINT", default=""),
        env.str("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", default=""),
        env.str("OTEL_EXPORTER_OTLP_PROTOCOL", default="http/protobuf"),
    )
)
TRACE_CALLERS = _switch("TRACE_CALLERS", default=False)
TRACE_UPSTREAMS = _switch("TRACE_UPSTREAMS", default=False)
ACCESS_LOG = _parse(parse_access_log, env.str("ACCESS_LOG", default="on"), "ACCESS_LOG")
METRICS_ORGANIZATIONS = _parse(
    parse_organizations, _names("METRICS_ORGANIZATIONS", []), "METRICS_ORGANIZATIONS"
)
DATABASE_POOL_SIZE = _integer("DATABASE_POOL_SIZE", 8)
DATABASE_DATA_PLANE_CONNECTIONS = _integer("DATABASE_DATA_PLANE_CONNECTIONS", 4, minimum=2)
_direct_url = env.str("DATABASE_DIRECT_URL", default="").strip()
_replica_url = env.str("DATABASE_REPLICA_URL", default="").strip()
REPLICA_MAX_LAG = _number("REPLICA_MAX_LAG", 5, minimum=0.1)
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_REQUEST_BYTES
LOG_LEVEL = _choice("LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"))
LOG_FORMAT = _choice("LOG_FORMAT", "text", ("text", "json"))
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {
        "context": {"()": "config.server.logs.ContextFilter"},
        "refusals": {"()": "config.server.logs.UnavailableFilter"},
        "pool": {"()": "config.database.outages.PoolFilter"},
    },
    "formatters": {
        "text": {"()": "config.server.logs.TextFormatter"},
        "json": {"()": "config.server.logs.JSONFormatter"},
    },
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": LOG_FORMAT,
            "filters": ["context"],
        },
    },
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        "uvicorn.access": {"level": "WARNING"},
        "django.request": {"filters": ["refusals"]},
        "psycopg.pool": {"filters": ["pool"]},
        # Internet scanners send unknown host names all the time.
        "django.security.DisallowedHost": {"level": "CRITICAL"},
        # Its records contain the path of a chain node's URL, which often holds the node's key.
        "urllib3": {"level": "WARNING"},
        # It warns of each malformed form, which is answered with 400.
        "python_multipart": {"level": "CRITICAL"},
    },
}

UNFOLD = {
    "SITE_TITLE": "Causeway",
    "SITE_HEADER": "Causeway",
    # unfold imports a module by the name in a text that has a dot, so it gets functions instead.
    "SITE_SUBHEADER": lambda _: f"LLM gateway {VERSION}",
    "SITE_URL": "/docs",
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "SITE_SYMBOL": "alt_route",
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda _: f"{STATIC_URL}causeway/icon.svg"}
    ],
    "BORDER_RADIUS": "6px",
    "DASHBOARD_CALLBACK": "inference.reports.dashboard.build_dashboard",
    "STYLES": [lambda _: f"{STATIC_URL}causeway/console.css"],
    "COMMAND": {"search_models": False},
    "SIDEBAR": {
        "show_search": True,
        "command_search": True,
        "navigation": "config.console.navigation.build_sidebar",
    },
    "ACCOUNT": {
        "navigation": [
            {"title": "Guides", "link": reverse_lazy("guide")},
            {"title": "Change password", "link": reverse_lazy("admin:password_change")},
            {"title": "Two-factor login", "link": reverse_lazy("admin:two_factor")},
        ]
    },
}

# What follows comes last, when every variable has been asked for: a misspelt name is the likely
# reason why a secret or the database is missing, and no secret is generated before it is reported.
_secret_key = env.str("SECRET_KEY", default="").strip()
_credential_keys = env.str("CREDENTIAL_KEYS", default="").strip()
SECRET_KEY_FALLBACKS = _secret_list("SECRET_KEY_FALLBACKS")
KEY_PEPPERS = _secret_list("KEY_PEPPERS")
_foreign = _names("FOREIGN_VARIABLES", [])
_misspelt = find_misspelt(os.environ, env.names, foreign=_foreign)
if _misspelt:
    raise ImproperlyConfigured(
        " ".join(f"{name} is no setting: did you mean {near}?" for name, near in _misspelt.items())
        + " Rename or remove the variable; or, if another program reads it, add its name to "
        "FOREIGN_VARIABLES."
    )
if _secret_key and not _database_url:
    raise ImproperlyConfigured(
        "SECRET_KEY is set, but DATABASE_URL is not. Set DATABASE_URL to your PostgreSQL, or to "
        "'embedded' for the database under DATA_DIR."
    )
if EMBEDDED and not has_programs():
    raise ImproperlyConfigured(
        "There is no embedded PostgreSQL in this installation. Set DATABASE_URL to a PostgreSQL of "
        "your own, for instance postgres://causeway:secret@db.example.com/causeway."
    )

DATABASES = environment.read_databases(_database_url, _direct_url, _replica_url)
SECRET_KEY = _secret_key or _generate_secret("SECRET_KEY", lambda: secrets.token_urlsafe(48))
if len(SECRET_KEY) < 32:
    raise ImproperlyConfigured(
        f"SECRET_KEY {'is too short' if SECRET_KEY else 'is not set'}: it needs at least 32 random "
        "characters; generate one with: openssl rand -base64 48"
    )
CREDENTIAL_KEYS = parse_credential_keys(
    _credential_keys
    or _generate_secret(
        "CREDENTIAL_KEYS", lambda: base64.b64encode(secrets.token_bytes(32)).decode()
    )
)

if EMBEDDED:
    # This backend starts the embedded server when the process opens its first connection.
    DATABASES["default"]["ENGINE"] = "config.local.database"
