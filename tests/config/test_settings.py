"""What the settings read from the environment, and what they refuse."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from config.environment import find_misspelt, measure_distance
from config.local.bootstrap import PROJECT
from config.settings import env
from tests.support.settings import read_settings

OLD, OLDER = "o" * 32, "p" * 32


def refuse(**variables: str) -> str:
    """Returns why nothing starts with these variables."""
    with pytest.raises(ImproperlyConfigured) as refusal:
        read_settings(**variables)
    return str(refusal.value)


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=PROJECT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_earlier_secret_keys_are_a_list() -> None:
    found = read_settings(SECRET_KEY_FALLBACKS=f"{OLD}, {OLDER}\n")
    assert found["SECRET_KEY_FALLBACKS"] == [OLD, OLDER]


def test_a_value_may_begin_with_a_dollar_sign(tmp_path: Path) -> None:
    secret, file = f"${OLD}", tmp_path / "secret"
    file.write_text(f"{secret}\n")
    found = read_settings(
        SECRET_KEY=secret, KEY_PEPPERS=f"{secret},{OLDER}", METRICS_TOKEN_FILE=str(file),
        ALLOWED_HOSTS="$HOME,b.example", METRICS_HOST="$HOME",
    )  # fmt: skip
    assert (found["SECRET_KEY"], found["METRICS_TOKEN"]) == (secret, secret)
    assert found["KEY_PEPPERS"] == [secret, OLDER]
    assert (found["ALLOWED_HOSTS"], found["METRICS_HOST"]) == (["$HOME", "b.example"], "$HOME")
    assert read_settings(SECRET_KEY_FILE=str(file))["SECRET_KEY"] == secret


def test_a_value_from_a_file_ends_before_the_line_does(tmp_path: Path) -> None:
    values = {
        "LOG_FORMAT": "json",
        "LOG_LEVEL": "DEBUG",
        "MODEL_LISTS": "all",
        "CREDENTIALS_REQUIRE_HOSTS": "named",
        "DATA_DIR": str(tmp_path / "data"),
    }
    files = {name: tmp_path / name for name in values}
    for name, file in files.items():
        file.write_text(f"{values[name]}\n")
    found = read_settings(**{f"{name}_FILE": str(file) for name, file in files.items()})
    assert {name: str(found[name]) for name in values} == values


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("BALANCE_ALERT_USD", "must be an amount of USD, such as 5 or 0.50."),
        ("BYOK_FEE_PERCENT", "must be a number from 0 to 100."),
        ("REQUESTS_PER_MINUTE", "must be a number."),
        ("DEBUG", "must be on or off."),
        ("LOG_FORMAT", "must be one of text, json."),
        ("DATABASE_URL", "must name a PostgreSQL database"),
    ],
)
def test_a_dollar_sign_is_not_taken_for_a_default(name: str, refusal: str) -> None:
    assert refuse(**{name: "$7"}).startswith(f"{name} {refusal}")


@pytest.mark.parametrize("text", [f"{OLD},short", f"{OLD},", ","])
def test_a_short_part_of_a_list_of_secrets_is_refused(text: str) -> None:
    refusal = refuse(SECRET_KEY_FALLBACKS=text)
    assert refusal == (
        "SECRET_KEY_FALLBACKS is a comma list; each part needs at least 32 random characters."
    )


@pytest.mark.parametrize(
    ("text", "is_on"), [("on", True), ("True", True), ("1", True), ("off", False), ("", False)]
)
def test_a_switch_is_on_or_off(text: str, is_on: bool) -> None:
    assert read_settings(ADMIN_REQUIRES_TOTP=text)["ADMIN_REQUIRES_TOTP"] is is_on


@pytest.mark.parametrize(
    ("environment", "refusal"),
    [
        ({"ADMIN_REQUIRES_TOTP": "ture"}, "ADMIN_REQUIRES_TOTP must be on or off."),
        ({"DATABASE_URL": "embeded"}, "DATABASE_URL must name a PostgreSQL database"),
        ({"SECRET_KEY": ""}, "SECRET_KEY is not set: it needs at least 32"),
        ({"SECRET_KEY_FILE": "/nowhere"}, "SECRET_KEY_FILE: /nowhere cannot be read"),
        ({"CATALOG_SYNC": "prices=https://a.example"}, "CATALOG_SYNC is a comma list of SOURCE="),
        *(
            ({"CATALOG_SYNC": f"litellm={url}"}, "CATALOG_SYNC needs an https:// URL without a")
            for url in ("http://a.example/", "https://me@a.example/", "https:///list", "https://[")
        ),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_variable(
    environment: dict[str, str], refusal: str
) -> None:
    assert refuse(**environment).startswith(refusal)


@pytest.mark.parametrize(
    "url",
    [
        "{}://u:Tr0ub4/dor@h/db",
        "{}://u:12/Tr0ub4@h/db",
        "{}://u:Tr0ub4?dor@h/db",
        "{}://u:12?x=Tr0ub4@h/db",
        "{}://u:12/Tr0ub4#dor@h",
        "{}://u:Tr0ub4@h:port/db",
        "'{}://u:Tr0ub4@h/db'",
        '"{}://u:Tr0ub4@h/db"',
    ],
)
@pytest.mark.parametrize(
    ("variable", "scheme"),
    [
        ("DATABASE_URL", "postgres"),
        ("DATABASE_DIRECT_URL", "postgres"),
        ("DATABASE_REPLICA_URL", "postgres"),
        ("EMAIL_URL", "smtp"),
    ],
)
def test_a_mistyped_url_is_refused_without_its_password(
    variable: str, scheme: str, url: str
) -> None:
    refusal = refuse(**{variable: url.format(scheme)})
    assert refusal.startswith(f"{variable}"), refusal
    assert "no quotes around it, and /, ? and # in the password as %2F, %3F and %23." in refusal
    assert "Tr0ub4" not in refusal


@pytest.mark.parametrize("url", ["smtp://u:Tr0ub4#dor@h", "smtp://u:12#Tr0ub4@h", "smtp://u:Tr℀@h"])
def test_a_mistyped_mail_server_is_refused_without_its_password(url: str) -> None:
    refusal = refuse(EMAIL_URL=url)
    assert refusal.startswith("EMAIL_URL: must be smtp://")
    assert "Tr" not in refusal


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("postgres://u:a%2Fb%3Fc%23d%40e@h/db", "a/b?c#d@e"),
        ("postgres://u:a#b@c[@h/db?sslmode=require", "a#b@c["),
        ("postgres://u:a@h1:5433,h2/db", "a"),
    ],
)
def test_a_password_may_have_every_other_character(url: str, password: str) -> None:
    found = read_settings(DATABASE_URL=url)["DATABASES"]["default"]
    assert (found["NAME"], found["USER"], found["PASSWORD"]) == ("db", "u", password)


@pytest.mark.parametrize("url", ["postgres://u:Tr0ub4/dor@h/db", "'postgres://u:Tr0ub4@h/db'"])
def test_no_command_prints_the_password_of_a_mistyped_url(url: str) -> None:
    done = manage("migrate", DATABASE_URL=url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("Causeway cannot start: DATABASE_URL must name a PostgreSQL")
    assert "Tr0ub4" not in done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "REQUESTS_PER_MINUTE", "IO_LOGGING_DAYS", "WATCH_INTERVAL", "SECURE_HSTS_SECONDS",
        "TOP_UP_GRACE", "CATALOG_RISE_LIMIT", "ORGANIZATION_MAX_KEYS", "METRICS_PORT",
    ],
)  # fmt: skip
def test_a_fraction_is_no_whole_number(name: str) -> None:
    assert refuse(**{name: "0.5"}) == f"{name} must be a whole number."
    assert refuse(**{name: "1.000001"}) == f"{name} must be a whole number."
    assert [read_settings(**{name: text})[name] for text in ("1.0", "2e3", " 7\n")] == [1, 2000, 7]


@pytest.mark.parametrize("name", ["CSRF_TRUSTED_ORIGINS", "CORS_ALLOWED_ORIGINS"])
def test_names_are_read_without_what_stands_around_them(name: str) -> None:
    assert read_settings(**{name: " https://a.example, https://b.example,\n"})[name] == [
        "https://a.example", "https://b.example",
    ]  # fmt: skip
    assert read_settings(ALLOWED_HOSTS="a.example, b.example\n")["ALLOWED_HOSTS"] == [
        "a.example", "b.example",
    ]  # fmt: skip


@pytest.mark.parametrize("database", ["embedded", "postgres://causeway@db.example/causeway"])
def test_a_file_without_authorities_is_refused_by_the_name_of_its_variable(
    tmp_path: Path, database: str
) -> None:
    file = tmp_path / "ca.pem"
    pem = Path(settings.EGRESS_POLICY.ca_bundle).read_text()
    der = ssl.PEM_cert_to_DER_cert(pem)
    variables = {"DATABASE_URL": database, "DATA_DIR": str(tmp_path)}
    found = [refuse(UPSTREAM_CA_BUNDLE=str(path), **variables) for path in (file, tmp_path)]
    assert found == [f"UPSTREAM_CA_BUNDLE: there is no file {path}." for path in (file, tmp_path)]
    for content in (b"", der, b"no certificate", pem.encode()[:200]):
        file.write_bytes(content)
        refusal = refuse(UPSTREAM_CA_BUNDLE=str(file), **variables)
        assert refusal.startswith(f"UPSTREAM_CA_BUNDLE: {file}: Must be certificates in PEM: ")
    file.write_text(f"# Ours\n{pem}")
    found_settings = read_settings(UPSTREAM_CA_BUNDLE=f" {file}\n", **variables)
    assert found_settings["EGRESS_POLICY"].ca_bundle == str(file)


def test_a_demo_may_make_its_authority_later(tmp_path: Path) -> None:
    file = str(tmp_path / "simulator" / "ca.pem")
    found = read_settings(DATABASE_URL="embedded", DATA_DIR=str(tmp_path), UPSTREAM_CA_BUNDLE=file)
    assert found["EGRESS_POLICY"].ca_bundle == file


def test_the_variables_of_a_kubernetes_service_are_no_port() -> None:
    assert read_settings(METRICS_PORT="tcp://10.0.0.7:9090")["METRICS_PORT"] is None


@pytest.mark.parametrize("command", ["migrate", "create_organization"])
def test_no_command_makes_a_database_for_a_secret_key(tmp_path: Path, command: str) -> None:
    done = manage(command, DATABASE_URL="", DATA_DIR=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("Causeway cannot start: SECRET_KEY is set, but DATABASE_URL is")
    assert list(tmp_path.iterdir()) == []


def test_the_embedded_database_is_chosen_by_name_or_by_an_empty_environment(tmp_path: Path) -> None:
    for changes in ({"DATABASE_URL": "embedded"}, {"DATABASE_URL": "", "SECRET_KEY": ""}):
        found = read_settings(DATA_DIR=str(tmp_path), **changes)
        assert found["EMBEDDED"] is True
        assert found["DATABASES"]["default"]["ENGINE"] == "config.local.database"


def test_an_empty_file_of_a_secret_is_filled_once(tmp_path: Path) -> None:
    """A disk that was full leaves one."""
    changes = {"DATABASE_URL": "embedded", "SECRET_KEY": "", "CREDENTIAL_KEYS": ""}
    files = [tmp_path / name for name in ("secret_key", "credential_keys")]
    for file in files:
        file.touch(0o600)
    first, again = (read_settings(DATA_DIR=str(tmp_path), **changes) for _ in range(2))
    assert again["SECRET_KEY"] == first["SECRET_KEY"] == files[0].read_text()
    assert again["CREDENTIAL_KEYS"] == first["CREDENTIAL_KEYS"]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("DATABASE_URI", "DATABASE_URL"),
        ("ALLOWED_HOST", "ALLOWED_HOSTS"),
        ("LOGLEVEL", "LOG_LEVEL"),
        ("DATADIR", "DATA_DIR"),
        ("SERCET_KEY", "SECRET_KEY"),
        ("secret_key", "SECRET_KEY"),
        ("SECRET_KEY_FIEL", "SECRET_KEY_FILE"),
        ("UPSTREAM_ALOWED_NETWORK", "UPSTREAM_ALLOWED_NETWORKS"),
        ("FORWARDED_ALLOW_IP", "FORWARDED_ALLOW_IPS"),
    ],
)
def test_a_name_that_is_nearly_a_setting_is_found(name: str, wanted: str) -> None:
    assert find_misspelt([name, wanted], env.names, foreign=()) == {name: wanted}
    assert find_misspelt([name], env.names, foreign=[name]) == {}


@pytest.mark.parametrize("command", ["migrate", "create_organization"])
def test_a_misspelt_secret_is_named_before_another_one_is_made(
    tmp_path: Path, command: str
) -> None:
    done = manage(command, DATABASE_URL="embedded", DATA_DIR=str(tmp_path), SECRTE_KEY="hidden")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Causeway cannot start: SECRTE_KEY is no setting: did you mean SECRET_KEY? Rename or "
        "remove the variable; or, if another program reads it, add its name to "
        "FOREIGN_VARIABLES.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_all_misspelt_names_are_reported_at_once() -> None:
    assert (
        "DATABASE_URI is no setting: did you mean DATABASE_URL? "
        "LOG_FROMAT is no setting: did you mean LOG_FORMAT? "
    ) in refuse(DATABASE_URI="x", LOG_FROMAT="json")


def test_a_variable_of_another_program_is_accepted_when_it_is_listed() -> None:
    found = read_settings(DATABASE_URI="x", FOREIGN_VARIABLES="DATABASE_URI,OTHER")
    assert found["EMBEDDED"] is False


def test_the_names_are_those_that_the_settings_ask_for() -> None:
    assert {"DATABASE_URL", "FORWARDED_ALLOW_IPS", "MAX_REQUEST_BYTES"} <= env.names
    assert find_misspelt(env.names, env.names, foreign=()) == {}


# Variables that shells, service managers, containers, CI, Python and PostgreSQL set.
FOREIGN = [
    "PATH", "HOME", "PWD", "OLDPWD", "SHELL", "SHLVL", "USER", "LOGNAME", "MAIL", "LANG",
    "LANGUAGE", "LC_ALL", "LC_CTYPE", "TERM", "EDITOR", "VISUAL", "PAGER", "HOSTNAME",
    "HOSTTYPE", "DISPLAY", "TZ", "TMPDIR", "TEMP", "TMP", "XDG_DATA_DIRS", "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR", "XDG_CONFIG_DIRS", "XDG_CACHE_HOME", "DBUS_SESSION_BUS_ADDRESS",
    "SSH_AUTH_SOCK", "SSH_TTY", "INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET",
    "LISTEN_FDS", "LISTEN_PID", "MAINPID", "WATCHDOG_USEC", "WATCHDOG_PID", "STATE_DIRECTORY",
    "RUNTIME_DIRECTORY", "CACHE_DIRECTORY", "LOGS_DIRECTORY", "CREDENTIALS_DIRECTORY",
    "CONFIGURATION_DIRECTORY", "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_WATCH",
    "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBERNETES_PORT",
    "KUBERNETES_PORT_443_TCP", "POD_NAME", "POD_IP", "POD_NAMESPACE", "NODE_NAME",
    "CONTAINER_NAME", "DOCKER_HOST", "COMPOSE_PROJECT_NAME", "CI", "DEBUG_LEVEL", "VERBOSE",
    "BUILD_NUMBER", "GITHUB_ACTIONS", "GITHUB_TOKEN", "GITHUB_WORKSPACE", "RUNNER_OS",
    "GITLAB_CI", "CI_JOB_TOKEN", "CI_PROJECT_DIR", "TF_BUILD", "JENKINS_URL", "BUILD_URL",
    "NODE_ENV", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy",
    "no_proxy", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED",
    "PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS", "VIRTUAL_ENV", "PIP_INDEX_URL",
    "UV_DEFAULT_INDEX", "UV_SYSTEM_CERTS", "PYTEST_CURRENT_TEST", "COVERAGE_FILE",
    "DJANGO_SETTINGS_MODULE", "WEB_CONCURRENCY", "PORT", "HOST", "PROMETHEUS_MULTIPROC_DIR",
    "GUNICORN_CMD_ARGS", "CAUSEWAY_BOOTSTRAPPED", "CAUSEWAY_TEST_DIR", "PGHOST", "PGPORT",
    "PGUSER", "PGPASSWORD", "PGDATABASE", "PGDATA", "PGSSLMODE", "PGSERVICE", "PGPASSFILE",
    "POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB", "REDIS_URL", "AMQP_URL", "BROKER_URL",
    "MONGO_URL", "SENTRY_DSN", "BASE_URL", "EMAIL_HOST", "EMAIL_PORT", "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "OPENAI_API_KEY", "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME", "HF_TOKEN",
    "LOG_FILE", "LOG_DIR", "DATA_PATH", "BASE_DIR", "META_DIR", "SECRET_FILE", "API_KEY",
    "SECRET",
]  # fmt: skip


def test_no_common_variable_of_other_programs_is_refused() -> None:
    assert find_misspelt(FOREIGN, env.names, foreign=()) == {}


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [("", "abc", 3), ("abc", "abc", 0), ("abc", "acb", 1), ("abcd", "badc", 2), ("cat", "at", 1)],
)
def test_the_distance_counts_exchanged_neighbours_once(one: str, other: str, distance: int) -> None:
    assert measure_distance(one, other) == measure_distance(other, one) == distance


def test_the_rule_for_the_hosts_of_credentials_is_one_of_three() -> None:
    assert read_settings()["CREDENTIALS_REQUIRE_HOSTS"] == "first-use"
    refusal = refuse(CREDENTIALS_REQUIRE_HOSTS="first_use")
    assert refusal == "CREDENTIALS_REQUIRE_HOSTS must be one of first-use, named, off."


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("", ["", 25, "", "", False, False]),
        ("smtp://mail.example.com", ["mail.example.com", 25, "", "", False, False]),
        (
            "smtp+tls://ann%40example.com:pass%2Fword@mail.example.com",
            ["mail.example.com", 587, "ann@example.com", "pass/word", False, True],
        ),
        ("smtps://mail.example.com:4465/", ["mail.example.com", 4465, "", "", True, False]),
    ],
)
def test_a_mail_server_is_a_url(url: str, wanted: list[object]) -> None:
    names = ("HOST", "PORT", "HOST_USER", "HOST_PASSWORD", "USE_SSL", "USE_TLS")
    sender = "Causeway <causeway@example.com>"
    found = read_settings(EMAIL_URL=url, DEFAULT_FROM_EMAIL=sender)
    assert [found[f"EMAIL_{name}"] for name in names] == wanted


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"EMAIL_URL": "mail.example.com"}, "EMAIL_URL: must be smtp://"),
        ({"EMAIL_URL": "https://mail.example.com"}, "EMAIL_URL: must be smtp://"),
        ({"EMAIL_URL": "smtp://mail.example.com:port"}, "EMAIL_URL: "),
        ({"EMAIL_URL": "smtp://mail.example.com"}, "DEFAULT_FROM_EMAIL is not: it is the sender"),
        ({"DEFAULT_FROM_EMAIL": "nobody"}, "DEFAULT_FROM_EMAIL: must be an address"),
    ],
)
def test_a_wrong_mail_setting_is_refused_by_name(variables: dict[str, str], text: str) -> None:
    assert text in refuse(**variables)


def test_a_database_host_that_vanishes_is_noticed_unless_its_url_says_otherwise() -> None:
    address = "postgres://causeway@db.example/causeway"
    found = read_settings(
        DATABASE_URL=address, DATABASE_DIRECT_URL=f"{address}?keepalives_idle=60&tcp_user_timeout=0"
    )["DATABASES"]
    own = {"connect_timeout": 2, "application_name": "causeway"}
    rest = {"keepalives_interval": 5, "keepalives_count": 3, **own}
    assert found["default"]["OPTIONS"] == {
        "keepalives_idle": 10, "tcp_user_timeout": 15_000, **rest
    }  # fmt: skip
    assert found["direct"]["OPTIONS"] == {"keepalives_idle": 60, "tcp_user_timeout": 0, **rest}
