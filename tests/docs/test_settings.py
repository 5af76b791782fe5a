"""The page of settings lists what `config/settings.py` reads, with the same defaults."""

from __future__ import annotations

import ast
import re
from typing import Any

from config.local.bootstrap import PROJECT
from tests.support.markdown import read_tables

_NAME = re.compile(r"[A-Z][A-Z_]+")
_MODULE = PROJECT / "config" / "settings.py"
_NOTHING = "–"


def documented() -> dict[str, str]:
    rows = read_tables(PROJECT / "docs" / "settings.md")
    named = [name.strip("`").partition("=") for name, _ in rows]
    return {name: default or _NOTHING for name, _, default in named}


def test_every_variable_is_documented_with_its_default() -> None:
    found: dict[str, str] = {}
    for call in ast.walk(ast.parse(_MODULE.read_text())):
        if isinstance(call, ast.Call) and _is_a_reader(call):
            name, default = call.args[0].value, _default_of(call)  # type: ignore[attr-defined]
            found[name] = default if found.get(name, _NOTHING) == _NOTHING else found[name]
    # The module spells these two as code.
    assert found.pop("DATA_DIR") == "str(default_data_dir())"
    assert found.pop("DATABASE_URL") == _NOTHING
    wanted = documented()
    assert (wanted.pop("DATA_DIR"), wanted.pop("DATABASE_URL")) == (".data", "embedded")
    assert found == wanted


def _is_a_reader(call: ast.Call) -> bool:
    """Returns whether a call reads a variable: `env.…("NAME")`, or a function of the module."""
    match call:
        case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _NAME.fullmatch(name):
            match call.func:
                case ast.Attribute(value=ast.Name(id="env")):
                    return True
                case ast.Name(id=function):
                    return function.startswith("_")
    return False


def _default_of(call: ast.Call) -> str:
    """Returns the default of a call as an operator would write it."""
    given = [word.value for word in call.keywords if word.arg == "default"]
    given += [value for value in call.args[1:2] if not isinstance(value, ast.Lambda)]
    if not given:
        # A percentage has none in the call: nothing is charged unless it is set.
        return "0" if isinstance(call.func, ast.Name) and "percent" in call.func.id else _NOTHING
    text = ast.unparse(given[0])
    if re.fullmatch(r"[\d_. *]+", text):
        return f"{eval(text):g}" if "." in text else str(eval(text))
    try:
        value: Any = ast.literal_eval(given[0])
    except ValueError:
        return text
    match value:
        case bool():
            return "on" if value else "off"
        case list():
            return ",".join(value) or _NOTHING
        case _:
            return str(value) or _NOTHING
