"""Code that generators make of the document compiles in strict mode, and it works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.contract import document
from tests.support.contract.clients import Serve
from tests.support.factories import Tenant

PACKAGES = (
    "openapi-typescript@7.13.0", "orval@8.38.0", "@hey-api/openapi-ts@0.99.0", "axios@1.21.1",
    "typescript@5.9.3", "@types/node@22",
)  # fmt: skip
# The wheel has the JAR.
JAR = "openapi-generator-cli==7.26.0"
TSCONFIG = {
    "compilerOptions": {
        "strict": True,
        "target": "es2022",
        "module": "es2022",
        "moduleResolution": "bundler",
        "lib": ["es2023", "dom", "dom.iterable"],
        "types": ["node"],
        "skipLibCheck": True,
        "outDir": "out",
    }
}
HEAD = """
const [server, model, key] = process.argv.slice(2) as [string, string, string];
const messages = [{ role: 'user' as const, content: 'one two' }];
const form = { image: [new File(['x'], 'x.png')], prompt: 'p', model, models: ['a/b'] };
"""
# A body with only what a chat needs, and calls through the functions of orval.
ORVAL = """
import type { components } from './types.js';
import { createAudioSpeech, createChatCompletion, editImages, listKeys } from './orval.js';
const options = { headers: { Authorization: `Bearer ${key}` } };
const body: components['schemas']['ChatRequest'] = { model, messages };
const chat = await createChatCompletion(body, options);
const answer = chat.status === 200 && chat.data.object === 'chat.completion' ? chat.data : null;
const said = answer?.choices[0]?.message.content;
const keys = await listKeys({ offset: 1 }, options);
const edit = await editImages(form, options);
const speech = await createAudioSpeech({ model, input: 'one' }, options);
console.log(JSON.stringify([said, keys.status, edit.status, speech.status]));
"""
HEY_API = """
import { createAudioSpeech, createChatCompletion, editImages, listKeys } from './hey/index.js';
import { client } from './hey/client.gen.js';
client.setConfig({ baseUrl: `${server}/api/v1`, auth: key });
const chat = await createChatCompletion({ body: { model, messages } });
const said = chat.data?.choices?.[0]?.message?.content;
const keys = await listKeys({ query: { offset: 1 } });
const edit = await editImages({ body: form });
const speech = await createAudioSpeech({ body: { model, input: 'one' } });
console.log(JSON.stringify([
  said, keys.error?.error.code, edit.error?.error.code, speech.error?.error.code,
]));
"""
AXIOS = """
import type { AxiosResponse } from 'axios';
import {
  ApiKeysApi, ChatCompletionsApi, Configuration, ImagesApi, TtsApi,
} from './axios/index.js';
const baseOptions = { validateStatus: () => true };
const options = new Configuration({ basePath: `${server}/api/v1`, accessToken: key, baseOptions });
const chat = await new ChatCompletionsApi(options).createChatCompletion({ model, messages });
const said = chat.data.choices?.[0]?.message?.content;
const keys = await new ApiKeysApi(options).listKeys(undefined, undefined, 1);
const edit = await new ImagesApi(options).editImages(form.image, form.prompt);
const speech = await new TtsApi(options).createAudioSpeech({ model, input: 'one' });
console.log(JSON.stringify([said, keys.status, edit.status, speech.status]));
"""
PYTHON = """
import json
import sys

import openapi_client as api
from openapi_client.exceptions import ApiException

server, model, key = sys.argv[1:]
configuration = api.Configuration(host=f"{server}/api/v1", access_token=key)
told: list[object] = []
with api.ApiClient(configuration) as client:
    text = api.ChatDeveloperMessageContent("one two")
    message = api.ChatRequestMessagesInner(api.ChatUserMessage(role="user", content=text))
    chat = api.ChatCompletionsApi(client).create_chat_completion(
        api.ChatRequest(model=model, messages=[message])
    )
    assert chat.choices and chat.choices[0].message and chat.choices[0].message.content
    told.append(chat.choices[0].message.content.actual_instance)
    for call in (
        lambda: api.ApiKeysApi(client).list_keys(offset=1),
        lambda: api.ImagesApi(client).edit_images(image=[("x.png", b"x")], prompt="p", model=model),
        lambda: api.TtsApi(client).create_audio_speech(api.SpeechRequest(model=model, input="one")),
    ):
        try:
            call()
        except ApiException as refused:
            told.append(refused.status)
print(json.dumps(told))
"""
# A key of inference manages no keys, and nothing serves images or speech here.
TOLD = ["You said: one two", 403, 400, 404]
Call = Callable[..., list[Any]]


def run(folder: Path, *command: str, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True,
        check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the generators of npm; skips where npm cannot install them."""
    folder = tmp_path_factory.mktemp("typescript")
    if (npm := shutil.which("npm")) is None:
        pytest.skip("npm is not installed")
    (folder / "package.json").write_text('{"type": "module"}')
    install = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", *PACKAGES]
    if subprocess.run(install, cwd=folder, check=False, timeout=400).returncode:
        pytest.skip("npm could not install the generators")
    return folder


@pytest.fixture(scope="session")
def openapi_generator(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Returns the command that generates; skips without Java, or where it cannot be installed."""
    folder = tmp_path_factory.mktemp("generator")
    if (java := shutil.which("java")) is None:
        pytest.skip("java is not installed")
    install = (sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--target", str(folder))
    if subprocess.run([*install, JAR], check=False, timeout=400).returncode:
        pytest.skip("the generator could not be installed")
    [jar] = folder.glob("openapi_generator_cli/*.jar")
    return java, "-jar", str(jar), "generate", "-i", str(document.GOLDEN)


@pytest.fixture
def call(project: Path, serve: Serve, server: str, tenant: Tenant) -> Call:
    """Returns a function that compiles a program and returns what it tells."""

    def compile_and_run(name: str, program: str) -> list[Any]:
        (project / f"{name}.ts").write_text(HEAD + program)
        (project / "tsconfig.json").write_text(json.dumps(TSCONFIG | {"files": [f"{name}.ts"]}))
        run(project, "npx", "tsc", "-p", ".")
        arguments = (server, serve("sim-echo"), tenant.api_key)
        told: list[Any] = json.loads(run(project, "node", f"out/{name}.js", *arguments))
        return told

    return compile_and_run


def test_openapi_typescript_and_orval(project: Path, call: Call, server: str) -> None:
    output = {"target": "./orval.ts", "client": "fetch", "baseUrl": f"{server}/api/v1"}
    config = {"api": {"input": str(document.GOLDEN), "output": output}}
    (project / "orval.config.cjs").write_text(f"module.exports = {json.dumps(config)};")
    run(project, "npx", "openapi-typescript", str(document.GOLDEN), "-o", "types.ts")
    run(project, "npx", "orval", "--config", "orval.config.cjs")
    assert call("call-orval", ORVAL) == TOLD


def test_hey_api(project: Path, call: Call) -> None:
    config = {
        "input": str(document.GOLDEN),
        "output": {"path": "hey", "importFileExtension": ".js"},
        "plugins": ["@hey-api/typescript", "@hey-api/sdk", "@hey-api/client-fetch"],
    }
    (project / "hey.config.mjs").write_text(f"export default {json.dumps(config)};")
    run(project, "npx", "openapi-ts", "-f", "hey.config.mjs")
    assert call("call-hey", HEY_API) == TOLD


def test_openapi_generator_for_axios(
    project: Path, call: Call, openapi_generator: tuple[str, ...]
) -> None:
    properties = ("--additional-properties", "importFileExtension=.js")
    run(project, *openapi_generator, "-g", "typescript-axios", "-o", "axios", *properties)
    assert call("call-axios", AXIOS) == TOLD


def test_openapi_generator_for_python(
    tmp_path: Path, openapi_generator: tuple[str, ...], serve: Serve, server: str, tenant: Tenant
) -> None:
    run(tmp_path, *openapi_generator, "-g", "python", "-o", "made")
    (tmp_path / "call.py").write_text(PYTHON)
    python = (sys.executable, "-W", "ignore")
    run(tmp_path, *python, "-m", "mypy", "--strict", "--follow-imports=silent", "call.py",
        MYPYPATH="made")  # fmt: skip
    arguments = (server, serve("sim-echo"), tenant.api_key)
    told = json.loads(run(tmp_path, *python, "call.py", *arguments, PYTHONPATH="made"))
    assert told == TOLD
