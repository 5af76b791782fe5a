"""What the settings of metrics and of the access log may say."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from config.telemetry.parsing import parse_access_log, parse_organizations
from tests.support.settings import read_settings


@pytest.mark.parametrize("text", ["", " ", "off", "OFF"])
def test_no_access_log_is_the_default(text: str) -> None:
    assert parse_access_log(text) == ""


def test_an_access_log_is_a_file_in_a_folder_or_standard_output(tmp_path: Path) -> None:
    assert parse_access_log(" - ") == "-"
    assert parse_access_log(f"{tmp_path}/access.log") == f"{tmp_path}/access.log"
    with pytest.raises(ValueError, match="there is no folder /nowhere"):
        parse_access_log("/nowhere/access.log")


def test_at_most_100_organizations_have_figures() -> None:
    ids = [uuid.uuid4() for _ in range(101)]
    assert parse_organizations([f" {each} " for each in ids[:100]]) == frozenset(ids[:100])
    with pytest.raises(ValueError, match="100 organizations at most"):
        parse_organizations(map(str, ids))
    with pytest.raises(ValueError, match="comma list of ids"):
        parse_organizations(["Acme"])


@pytest.mark.parametrize(
    ("names", "url"),
    [
        ((), ""),
        (("OTEL_EXPORTER_OTLP_ENDPOINT",), "http://receiver:4318/v1/traces"),
        (("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",), "http://receiver:4318/"),
        (
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
            "http://receiver:4318/",
        ),
    ],
)
def test_spans_go_where_a_file_says(tmp_path: Path, names: tuple[str, ...], url: str) -> None:
    file = tmp_path / "receiver"
    file.write_text("http://receiver:4318/\n")
    found = read_settings(**{f"{name}_FILE": str(file) for name in names})
    assert found["TRACES_URL"] == url


def test_a_refused_setting_is_named() -> None:
    with pytest.raises(
        ImproperlyConfigured, match=r"^METRICS_ORGANIZATIONS: it is a comma list of ids of organiz"
    ):
        read_settings(METRICS_ORGANIZATIONS="Acme")
