"""Real servers and gateways that do not fit beside the tests, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.upstreams.tiny_model import write_tiny_encoder, write_tiny_folder

# The folder of the packages of these servers, which do not fit beside those of the tests.
SERVERS: Final = "CAUSEWAY_TEST_SERVERS"
MASTER_KEY: Final = "sk-lite-0123456789"
_LITELLM: Final = "import sys; from litellm import run_server; sys.exit(run_server())"
_MLX: Final = """
import http.server, mlx_lm.server
activate = http.server.HTTPServer.server_activate
def tell(server):
    activate(server)
    print("running on http://127.0.0.1:%d" % server.server_port, flush=True)
http.server.HTTPServer.server_activate = tell
mlx_lm.server.main()
"""
_TRANSFORMERS: Final = "from transformers.cli.transformers import main; main()"
_INFINITY: Final = "from infinity_emb.cli import cli; cli()"
_TENSORZERO: Final = """
import sys, tensorzero.tensorzero as wheel
options = dict.fromkeys(("clickhouse_url", "postgres_url", "valkey_url"))
gateway = wheel._start_http_gateway(config_file=sys.argv[1], async_setup=False, **options)
print("running on", gateway.base_url.removesuffix("/openai/v1"), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def serve_mlx(directory: Path) -> Iterator[str]:
    """Starts ``mlx_lm.server`` with a tiny model and yields its address."""
    model = directory / "tiny"
    write_tiny_folder(model)
    options = ("--model", str(model), "--host", "127.0.0.1", "--port", "0")
    with _start(_MLX, *options, HF_HUB_OFFLINE="1") as address:
        yield address


@contextlib.contextmanager
def serve_transformers(directory: Path) -> Iterator[str]:
    """Starts ``transformers serve`` with the tiny model in ``tiny`` and yields its address."""
    model = directory / "tiny"
    write_tiny_folder(model)
    options = ("serve", str(model), "--device", "cpu", "--log-level", "info", "--port", "0")
    with _start(_TRANSFORMERS, *options, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1") as address:
        # It says its name.
        yield address.replace("localhost", "127.0.0.1")


@contextlib.contextmanager
def serve_infinity(directory: Path) -> Iterator[str]:
    """Starts Infinity with the models ``embedder`` and ``ranker`` and yields its address."""
    options = [
        *("--device", "cpu", "--engine", "torch", "--host", "127.0.0.1", "--port", "0"),
        *("--api-key", MASTER_KEY, "--lengths-via-tokenize", "--no-bettertransformer"),
        "--no-model-warmup",
    ]
    for name in ("embedder", "ranker"):
        write_tiny_encoder(directory / name, ranks=name == "ranker")
        options += ("--model-id", str(directory / name), "--served-model-name", name)
    with _start(
        _INFINITY, "v2", *options, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1",
        INFINITY_ANONYMOUS_USAGE_STATS="0",
    ) as address:  # fmt: skip
        yield address


@contextlib.contextmanager
def serve_litellm(directory: Path, url: str, secret: str) -> Iterator[str]:
    """Starts LiteLLM's proxy of a server of OpenAI's format and yields its address."""
    upstream = {"model": "openai/tiny", "api_base": f"{url}/v1", "api_key": secret}
    config = directory / "litellm.yaml"
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": "tiny", "litellm_params": upstream}],
                "general_settings": {"master_key": MASTER_KEY},
            }
        )
    )
    options = ("--config", str(config), "--host", "127.0.0.1", "--port", "0")
    with _start(_LITELLM, *options, LITELLM_LOCAL_MODEL_COST_MAP="True") as address:
        yield address


@contextlib.contextmanager
def serve_tensorzero(directory: Path, url: str, secret: str) -> Iterator[str]:
    """Starts TensorZero's gateway to a server of OpenAI's format and yields its address."""
    config = directory / "tensorzero.toml"
    config.write_text(
        "gateway.observability.enabled = false\n"
        'models.tiny.routing = ["llama"]\n'
        "[models.tiny.providers.llama]\n"
        'type = "openai"\nmodel_name = "tiny"\napi_key_location = "env::LLAMA_KEY"\n'
        f'api_base = "{url}/v1/"\n'
    )
    with _start(_TENSORZERO, str(config), LLAMA_KEY=secret) as address:
        yield address


@contextlib.contextmanager
def _start(program: str, *arguments: str, **variables: str) -> Iterator[str]:
    """Runs a program and yields the address that it says it serves."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        # Not those of the tests: LiteLLM would take their database.
        env={
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "PYTHONPATH": os.environ[SERVERS],
            **variables,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    told: list[str] = []
    try:
        address = None
        for line in process.stdout:
            told.append(line)
            if "running on http" in line.lower():
                address = line.lower().partition("running on ")[2].split()[0]
                break
        assert address is not None, "".join(told)
        # What it says later must not fill the pipe.
        reader = threading.Thread(target=told.extend, args=(process.stdout,), daemon=True)
        reader.start()
        yield address
    finally:
        process.terminate()
        process.wait(60)
        if address is not None:
            reader.join(60)
        process.stdout.close()
        if process.stdin is not None:
            process.stdin.close()
