"""The README and the pages for users, executed against the demo that they start."""

from __future__ import annotations

import itertools
import json
import re
import site
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from config.local.bootstrap import PROJECT
from tests.support.machine.ports import reserved_port
from tests.support.machine.waiting import wait_until
from tests.support.markdown import PYTHON, SHELL, Reader, name_of, read_blocks
from tests.support.upstreams.listing import (
    CLAUDE,
    CONVERSE,
    LLAMA_CPP,
    OLLAMA,
    VLLM,
    answer_models,
    completion,
)
from tests.support.upstreams.tls import Authority, answering, serving

README = PROJECT / "README.md"
PAGES = (
    README,
    *(
        PROJECT / "docs" / name
        for name in (
            *("aliases.md", "broadcast.md", "clients.md", "io-logging.md"),
            *("start/connect.md", "start/private-endpoints.md", "start/team.md"),
        )
    ),
)
START, SUITE = "python3 manage.py demo\n", "python3 manage.py test\n"


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    """A person who has started the demo as the README says, and opens a second terminal."""
    [start] = [block for block in read_blocks(README, SHELL) if block.text == START]
    # The SDKs are installed here already, so that `pip install` needs no package index.
    with (
        reserved_port() as port,
        Reader(
            changes={"8000": f"{port}", "manage.py demo": f"manage.py demo --port {port}"},
            PYTHONPATH=site.getsitepackages()[0],
        ) as reader,
        reader.shell([start]) as (process, output),
    ):

        def is_serving() -> bool:
            assert process.poll() is None, output.read_text()
            return "Serving until Ctrl-C." in output.read_text()

        wait_until(is_serving, seconds=120)
        yield reader


@pytest.fixture(scope="module")
def own_servers(reader: Reader, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The servers and providers that the pages connect, at other ports and without a way out."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    token, key = "token-abc123", "sk-of-openai-0123456789"
    hosts = {
        "api.openai.com": answer_models([], key=key),
        "api.anthropic.com": _answering(CLAUDE),
        "my-company.openai.azure.com": _answering(completion("gpt-5-mini")),
        "bedrock-runtime.us-east-1.amazonaws.com": _answering(CONVERSE),
    }
    with ExitStack() as stack:
        own = {
            "127.0.0.1:11434": stack.enter_context(serving(answer_models(OLLAMA))),
            "10.0.0.5:8000": stack.enter_context(serving(answer_models(VLLM, key=token))),
            "127.0.0.1:8080": stack.enter_context(serving(answer_models(LLAMA_CPP))),
            "llm.lan:8443": stack.enter_context(
                serving(answer_models(VLLM), authority.server_context("127.0.0.1"))
            ),
        }
        pinned = {
            name: stack.enter_context(
                serving(script, authority.server_context(name), address="127.0.0.2")
            )
            for name, script in hosts.items()
        }
        places = {place: f"127.0.0.1:{server.port}" for place, server in own.items()}
        # A place has a port, so it comes before the port of the demo alone.
        reader.changes = {
            **places,
            "10.0.0.5": "127.0.0.1",
            "company-ca.pem": authority.bundle,
            **reader.changes,
        }
        reader.environment |= {
            "OPENAI_API_KEY": key,
            "ANTHROPIC_API_KEY": "sk-of-anthropic-0123456789",
            "AZURE_API_KEY": "azure-key-0123456789",
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "UPSTREAM_ALLOWED_NETWORKS": "127.0.0.2/32",
            "UPSTREAM_CA_BUNDLE": authority.bundle,
            "UPSTREAM_HOSTS": ",".join(
                f"{name}=127.0.0.2:{server.port}" for name, server in pinned.items()
            ),
        }
        yield


def _answering(body: Any) -> Any:
    return answering(json.dumps(body).encode())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_runs(reader: Reader, own_servers: None, page: Path) -> None:
    blocks = [
        block for block in read_blocks(page, SHELL, PYTHON) if block.text not in (START, SUITE)
    ]
    outputs = reader.run(blocks)
    for line, shown in _read_shown(page):
        for each in reader.change(shown).splitlines():
            pattern = re.escape(each).replace("…", ".*")
            assert re.search(rf"^{pattern}$", outputs[line], re.MULTILINE), outputs[line]
    for block in blocks:
        output = outputs[block.line]
        assert '"error":{' not in output.replace(" ", ""), f"{block}:\n{output}"
        if "What is a causeway?" in block.text:
            assert "You" in output, f"{block}:\n{output}"
            assert "causeway?" in output, f"{block}:\n{output}"


def _read_shown(page: Path) -> Iterator[tuple[int, str]]:
    """Yields what a start page shows of an output, and the line of the block that prints it."""
    if page.parent.name == "start":
        blocks = read_blocks(page)
        for block, shown in itertools.pairwise(blocks):
            if (block.language, shown.language) == (SHELL, "text"):
                yield block.line, shown.text


def test_the_readme_starts_the_suite(reader: Reader) -> None:
    [suite] = [block for block in read_blocks(README, SHELL) if block.text == SUITE]
    # The suite has this test, so its command only collects here, and one file of it.
    reader.environment["PYTEST_ADDOPTS"] = "--collect-only -q tests/docs/test_links.py"
    assert " tests collected in " in reader.run([suite])[suite.line]
