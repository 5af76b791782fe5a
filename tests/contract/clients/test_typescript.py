"""TypeScript that generators make of the document compiles in strict mode, and it works."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.contract import document
from tests.support.contract.clients import Serve
from tests.support.factories import Tenant

PACKAGES = ("openapi-typescript@7.13.0", "orval@7.13.2", "typescript@5.9.3")
# A body with only what a chat needs, and calls through the functions of orval.
MAIN = """
import type { components } from './types.js';
import { createAudioSpeech, createChatCompletion, editImages, listKeys } from './api.js';
const [model, key] = process.argv.slice(2) as [string, string];
const options = { headers: { Authorization: `Bearer ${key}` } };
const messages = [{ role: 'user' as const, content: 'one two' }];
const body: components['schemas']['ChatRequest'] = { model, messages };
const chat = await createChatCompletion({ model, messages }, options);
const keys = await listKeys({ offset: 1 }, options);
const form = { image: [new Blob(['x'])], prompt: 'p', model, models: ['a/b'] };
const edit = await editImages(form, options);
const said = chat.status === 200 ? chat.data : null;
const speech = typeof createAudioSpeech;
console.log(JSON.stringify({ body, said, keys: keys.status, edit: edit.status, speech }));
"""
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
    },
    "files": ["main.ts", "api.ts", "types.ts"],
}


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the generators; skips where npm cannot install them."""
    folder = tmp_path_factory.mktemp("typescript")
    if (npm := shutil.which("npm")) is None:
        pytest.skip("npm is not installed")
    (folder / "package.json").write_text('{"type": "module"}')
    install = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "@types/node@22"]
    if subprocess.run([*install, *PACKAGES], cwd=folder, check=False, timeout=400).returncode:
        pytest.skip("npm could not install the generators")
    return folder


def test_generated_typescript_compiles_and_calls(
    project: Path, serve: Serve, server: str, tenant: Tenant
) -> None:
    config = {
        "api": {
            "input": str(document.GOLDEN),
            "output": {"target": "./api.ts", "client": "fetch", "baseUrl": f"{server}/api/v1"},
        }
    }
    (project / "orval.config.cjs").write_text(f"module.exports = {json.dumps(config)};")
    (project / "main.ts").write_text(MAIN)
    (project / "tsconfig.json").write_text(json.dumps(TSCONFIG))
    run(project, "npx", "openapi-typescript", str(document.GOLDEN), "-o", "types.ts")
    run(project, "npx", "orval", "--config", "orval.config.cjs")
    run(project, "npx", "tsc", "-p", ".")
    model = serve("sim-echo")
    told = json.loads(run(project, "node", "out/main.js", model, tenant.api_key))
    assert told["body"] == {"model": model, "messages": [{"role": "user", "content": "one two"}]}
    assert told["said"]["choices"][0]["message"]["content"] == "You said: one two"
    # A key of inference manages no keys, and nothing serves images here.
    assert (told["keys"], told["edit"], told["speech"]) == (403, 400, "function")
