"""The simulated provider of the demo, and its command."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from django.core.management import call_command
from django.core.management.base import CommandError

from config.local.certificates import Certificates, ensure_certificates
from config.local.upstream import MODELS, serve_upstream
from config.management.commands.simulate_upstream import Command

HEADERS = {"Authorization": "Bearer any-key"}
USAGE = {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return ensure_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def base_url(certificates: Certificates) -> Iterator[str]:
    with serve_upstream(certificates, "127.0.0.1") as (url, port):
        assert url == f"https://127.0.0.1:{port}/v1"
        yield url


@pytest.fixture
def session(certificates: Certificates) -> Iterator[requests.Session]:
    with requests.Session() as session:
        # REQUESTS_CA_BUNDLE of the environment would come first.
        session.trust_env = False
        session.verify = str(certificates.ca)
        session.headers.update(HEADERS)
        yield session


def asking(model: str, text: Any = "say it", **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}]
    return {"model": model, "messages": messages, **more}


@pytest.mark.parametrize("model", ["sim-echo", "sim-slow", "acme/any-name"])
def test_a_model_repeats_the_last_user_message(
    base_url: str, session: requests.Session, model: str
) -> None:
    answer = session.post(f"{base_url}/chat/completions", json=asking(model)).json()
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{32}", answer.pop("id"))
    assert isinstance(answer.pop("created"), int)
    message = {"role": "assistant", "content": "You said: say it"}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    assert answer == {
        "object": "chat.completion", "model": model, "choices": [choice], "usage": USAGE,
    }  # fmt: skip


@pytest.mark.parametrize("model", ["sim-echo", "sim-slow"])
@pytest.mark.parametrize("include_usage", [False, True])
def test_a_model_streams_words(
    base_url: str, session: requests.Session, model: str, include_usage: bool
) -> None:
    body = asking(
        model,
        [{"type": "text", "text": "say it"}],
        stream=True,
        stream_options={"include_usage": include_usage},
    )
    answer = session.post(f"{base_url}/chat/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *blocks, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(block.removeprefix("data: ")) for block in blocks]
    assert {chunk["model"] for chunk in chunks} == {model}
    usages = [chunk["usage"] for chunk in chunks if "usage" in chunk]
    assert usages == ([USAGE] if include_usage else [])
    found = [(c["delta"], c["finish_reason"]) for chunk in chunks for c in chunk["choices"]]
    words = [({"content": word}, None) for word in ("You", " said:", " say", " it")]
    assert found == [({"role": "assistant", "content": ""}, None), *words, ({}, "stop")]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_answer_ends_at_the_limit(base_url: str, session: requests.Session, name: str) -> None:
    body = asking("sim-echo", "Hello!", **{name: 3})
    answer = session.post(f"{base_url}/chat/completions", json=body).json()
    [choice] = answer["choices"]
    assert choice["message"]["content"] == "Hello from the"
    assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 3)


@pytest.mark.parametrize(
    ("body", "key", "status"),
    [
        (asking("sim-failing"), "Bearer key", 503),
        (asking("sim-failing", stream=True), "Bearer key", 503),
        (asking("sim-echo"), "", 401),
        (asking("sim-echo"), "Basic key", 401),
        ({"model": "sim-echo"}, "Bearer key", 400),
        ({"messages": []}, "Bearer key", 400),
        (asking("sim-echo", max_tokens="3"), "Bearer key", 400),
        ([], "Bearer key", 400),
    ],
)
def test_a_refusal_is_an_error_object(
    base_url: str, session: requests.Session, body: Any, key: str, status: int
) -> None:
    answer = session.post(f"{base_url}/chat/completions", json=body, headers={"Authorization": key})
    assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_the_models_are_listed(base_url: str, session: requests.Session) -> None:
    listed = session.get(f"{base_url}/models").json()
    assert [model["id"] for model in listed["data"]] == list(MODELS)


@pytest.mark.parametrize(("host", "name"), [("0.0.0.0", "localhost"), ("::1", "[::1]")])
def test_the_base_url_can_be_called(certificates: Certificates, host: str, name: str) -> None:
    with serve_upstream(certificates, host) as (url, port):
        assert url == f"https://{name}:{port}/v1"
        assert requests.get(f"{url}/models", verify=str(certificates.ca)).status_code == 200


def test_without_certificates_it_speaks_plain_http() -> None:
    with serve_upstream(None, "127.0.0.1") as (url, port):
        assert url == f"http://127.0.0.1:{port}/v1"
        assert requests.get(f"{url}/models").status_code == 200


def test_the_command_reports_a_port_in_use(tmp_path: Path) -> None:
    with (
        serve_upstream(None, "127.0.0.1") as (_, port),
        pytest.raises(CommandError, match=r"^Cannot serve: Address already in use"),
    ):
        call_command(Command(), "--http", "--port", str(port))


def test_the_command_lists_every_model() -> None:
    out = io.StringIO()
    call_command(Command(stdout=out), "--list")
    assert [line.split()[0] for line in out.getvalue().splitlines()] == [
        "sim-echo", "sim-slow", "sim-failing",
    ]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_a_signal(tmp_path: Path, number: int) -> None:
    # What a shell starts in the background ignores SIGINT, and a whole suite may run there.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "from config.management.commands.simulate_upstream import Command;"
        f"Command().run_from_argv(['manage.py', 'simulate_upstream', '--port=0',"
        f" '--cert-dir={tmp_path}'])"
    )
    # Without settings the command cannot use a database.
    environment = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout
            lines = [process.stdout.readline() for _ in range(4)]
            found = re.fullmatch(r"Base URL:  (https://127\.0\.0\.1:\d+/v1)\n", lines[0])
            assert found
            assert lines[1] == f"CA:        {tmp_path}/ca.pem\n"
            assert lines[2].startswith(f"Try:       curl --cacert {tmp_path}/ca.pem https://")
            answer = requests.post(
                f"{found[1]}/chat/completions",
                json=asking("m"),
                headers=HEADERS,
                verify=str(tmp_path / "ca.pem"),
            )
            assert answer.status_code == 200
            process.send_signal(number)
            assert process.wait(60) == 0
        finally:
            process.kill()
