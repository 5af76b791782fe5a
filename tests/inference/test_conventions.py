"""Tests the names of telemetry against the newest packages of OpenTelemetry."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from config.telemetry.tracing import SCHEMA_URL
from inference import conventions

NAMES = sorted(
    value
    for name, value in vars(conventions).items()
    if name.isupper() and isinstance(value, str) and value.startswith("gen_ai.")
)


@pytest.mark.parametrize(
    ("slug", "dialect", "name"),
    [
        ("openai", "openai", "openai"),
        ("anthropic", "anthropic", "anthropic"),
        ("xai", "openai", "x_ai"),
        ("mistral", "openai", "mistral_ai"),
        ("amazon-bedrock", "bedrock", "aws.bedrock"),
        ("google-vertex", "vertex", "gcp.vertex_ai"),
        ("google-ai-studio", "gemini", "gcp.gemini"),
        ("azure", "azure", "azure.ai.openai"),
        ("our-own-cloud", "bedrock", "aws.bedrock"),
        ("our-own-server", "openai", "our-own-server"),
        ("private", None, "private"),
        # Further accounts of one provider.
        ("xai-2", "openai", "x_ai"),
        ("anthropic-3", "anthropic", "anthropic"),
        ("google-vertex-2", "vertex", "gcp.vertex_ai"),
        ("our-own-server-2", "openai", "our-own-server-2"),
    ],
)
def test_a_provider_has_the_name_of_the_registry(slug: str, dialect: str, name: str) -> None:
    assert conventions.name_provider(slug, dialect) == name


def test_tokens_have_names_by_their_modality() -> None:
    units = {"audio": 1, "image_prompt": 2, "audio_output": 0, "searches": 3}
    assert conventions.describe_units(units) == {
        "gen_ai.usage.audio.input_tokens": 1, "gen_ai.usage.image.input_tokens": 2,
    }  # fmt: skip
    assert conventions.describe_units(None) == {}


@pytest.fixture(scope="session")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the newest packages; skips where they cannot be had."""
    home = tmp_path_factory.mktemp("newest")
    subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True, timeout=120)
    command = [home / "venv/bin/python", "-m", "pip", "install", "-q", "--pre", "--no-deps",
               "--target", home / "got", "opentelemetry-util-genai",
               "opentelemetry-semantic-conventions"]  # fmt: skip
    if subprocess.run(command, check=False, timeout=300).returncode:
        pytest.skip("pip could not install the packages of OpenTelemetry")
    return home / "got" / "opentelemetry"


def read_assigned(path: Path) -> dict[str, ast.expr]:
    """Returns the values of the constants of a module."""
    return {
        node.target.id: node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
    }


def test_the_names_are_those_of_the_newest_registries(newest: Path) -> None:
    sources = [*newest.joinpath("util/genai").rglob("*.py"),
               newest / "semconv/_incubating/attributes/gen_ai_attributes.py"]  # fmt: skip
    text = "\n".join(path.read_text() for path in sources)
    named = [*NAMES, *conventions.TOKENS_OF_UNITS.values()]
    assert [name for name in named if f'"{name}"' not in text] == []
    for name in conventions._OF_SLUGS.values():
        assert f'= "{name}"' in text
    handler = newest.joinpath("util/genai/handler.py").read_text()
    version = SCHEMA_URL.rpartition("/")[2].replace(".", "_")
    assert f"schema_url = Schemas.V{version}.value" in handler


def test_the_metrics_are_those_of_the_newest_registries(newest: Path) -> None:
    constants = read_assigned(newest / "util/genai/_instruments.py")
    buckets = {name: ast.literal_eval(value) for name, value in constants.items()
               if name.startswith("_GEN_AI_CLIENT_")}  # fmt: skip
    assert buckets == {
        "_GEN_AI_CLIENT_OPERATION_DURATION_BUCKETS": [*conventions.SECONDS],
        "_GEN_AI_CLIENT_TOKEN_USAGE_BUCKETS": [*conventions.TOKENS],
    }
    metrics = read_assigned(newest / "semconv/_incubating/metrics/gen_ai_metrics.py")
    assert {
        f"{ast.literal_eval(metrics[f'GEN_AI_CLIENT_{name}'])}{unit}".replace(".", "_")
        for name, unit in (
            ("OPERATION_DURATION", "_seconds"),
            ("OPERATION_TIME_TO_FIRST_CHUNK", "_seconds"),
            ("TOKEN_USAGE", ""),
        )
    } == {conventions.DURATION_METRIC, conventions.FIRST_CHUNK_METRIC, conventions.TOKENS_METRIC}
