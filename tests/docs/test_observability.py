"""The configuration for Prometheus and Grafana works with the metrics that the service has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from config.local.bootstrap import PROJECT
from tests.support.bulkheads.counters import read_metrics
from tests.support.inference.site import Site

FOLDER: Final = PROJECT / "docs" / "deploy" / "observability"
ALERTS: Final = FOLDER / "alerts.yml"
_METRIC: Final = re.compile(r"\bcauseway_[a-z_]+\b")
_ALERT: Final = re.compile(r"alert: (\w+)")
_SUFFIX: Final = re.compile(r"_(bucket|count|sum)$")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="Debian's package prometheus is not installed"
)


def names_in(path: Path) -> set[str]:
    """Returns the names of the metrics that a file asks for."""
    return {_SUFFIX.sub("", name) for name in _METRIC.findall(path.read_text())}


def served(site: Site) -> set[str]:
    """Returns the names of the metrics of a running service."""
    families = text_string_to_metric_families(read_metrics(site.server))
    return {
        f"{family.name}_total" if family.type == "counter" else family.name for family in families
    }


@needs_promtool
@pytest.mark.parametrize(
    "command",
    [
        # The file of the token stands on the host of Prometheus.
        ("check", "config", "--syntax-only", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts.test.yml"),
    ],
)
def test_promtool_accepts_the_configuration(command: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_every_metric_of_an_alert_is_on_the_dashboard() -> None:
    """Checks the dashboard, which the person on call opens first."""
    tested = re.findall(
        r"alertname: (\w+)\n +exp_alerts:\n", (FOLDER / "alerts.test.yml").read_text()
    )
    assert sorted(set(tested)) == sorted(_ALERT.findall(ALERTS.read_text()))
    assert names_in(ALERTS) - names_in(FOLDER / "dashboard.json") == set()


@pytest.mark.parametrize("name", ["alerts.yml", "dashboard.json"])
def test_every_metric_that_is_asked_for_is_served(site: Site, name: str) -> None:
    assert names_in(FOLDER / name) - served(site) == set()


def test_the_dashboard_has_queries_that_prometheus_accepts(tmp_path: Path) -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) > len(panels) > 15
    # Prometheus refuses a query with Grafana's variables, so they get values.
    values = {"$__rate_interval": "1m", "$provider": ".*", "$model": ".*"}
    rules = []
    for number, query in enumerate(queries):
        for name, value in values.items():
            query = query.replace(name, value)
        rules.append({"record": f"query:{number}", "expr": query})
    if shutil.which("promtool") is None:
        pytest.skip("Debian's package prometheus is not installed")
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_links_to_a_runbook_of_its_name() -> None:
    text = ALERTS.read_text()
    links = re.findall(r"runbook_url: docs/runbooks\.md#(\w+)", text)
    alerts = _ALERT.findall(text)
    assert len(alerts) > 20
    assert links == [name.lower() for name in alerts]
