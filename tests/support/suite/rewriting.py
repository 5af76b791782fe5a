"""pytest plugin: rewrites the assertions of the tests before several processes import them.

pytest rewrites a module when a process imports it, and keeps the code in a file. On a new clone
each process would do that for each module, all at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import (
    PYC_TAIL,
    _read_pyc,
    _rewrite_test,
    _write_pyc,
    assertstate_key,
    get_cache_dir,
    try_makedirs,
)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        rewrite(find_modules(config), config)


def find_modules(config: pytest.Config) -> list[Path]:
    """Returns the modules below what the run names that pytest rewrites and does not leave out."""
    found = []
    for argument in config.args:
        path = config.invocation_params.dir / argument.partition("::")[0]
        found += (
            [path] if path.is_file() else [*path.rglob("test_*.py"), *path.rglob("conftest.py")]
        )
    ignores = config.hook.pytest_ignore_collect
    return [path for path in found if not ignores(collection_path=path, config=config)]


def rewrite(modules: Iterable[Path], config: pytest.Config) -> None:
    """Keeps the code of each module as pytest would after it has rewritten the assertions."""
    state = config.stash[assertstate_key]
    for module in modules:
        folder = get_cache_dir(module)
        kept = folder / (module.stem + PYC_TAIL)
        if try_makedirs(folder) and _read_pyc(module, kept) is None:
            source_hash, code = _rewrite_test(module, config)
            _write_pyc(state, code, source_hash, kept)
