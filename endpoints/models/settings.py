"""The settings of private endpoints: copied at creation, changed by their owner, and shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from catalog.abilities import (
    DECLARABLE,
    QUANTIZATIONS,
    UNSET_SETTINGS,
    InvalidAbilities,
    change,
    dump,
    find_problem,
    read_settings,
    show,
)
from catalog.models import LanguageModel, ModelEndpoint
from config.api.errors import InvalidRequest

# Where an owner states nothing, routing excludes nothing.
_ASSUMED: Final = ("reasoning.supported", *(
    f"tool_choice.{name}" for name in ("auto", "function", "none", "required")
))  # fmt: skip


class InvalidSettings(InvalidRequest):
    """Settings do not fit each other, the model, or what a validation has proven."""

    error_type = "settings_invalid"


class InvalidParameters(InvalidRequest):
    """The declared parameters need another one."""

    error_type = "parameters_invalid"


def copy_settings(model: LanguageModel, public: ModelEndpoint | None) -> dict[str, Any]:
    """Returns the settings of a new endpoint: those of the public one, else those of the model."""
    if public is None:
        return {} if model.context_length is None else {"context_length": model.context_length}
    limits: dict[str, Any] = {
        "context_length": public.context_length or model.context_length,
        "max_completion_tokens": public.max_completion_tokens,
    }
    if public.quantization in QUANTIZATIONS and public.quantization != "unknown":
        limits["quantization"] = public.quantization
    stated = {name: value for name, value in limits.items() if value is not None}
    return {**public.abilities, **stated}


def apply_settings(
    stated: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    model: LanguageModel,
    tested: Collection[str] = (),
) -> dict[str, Any]:
    """Returns what is stated after a partial change; raises :class:`InvalidSettings`."""
    try:
        found = change(UNSET_SETTINGS, stated, given)
    except InvalidAbilities as exc:
        raise _refuse(exc) from None
    problem = find_problem(found, length=model.context_length, tested=tested)
    if problem is not None:
        raise _refuse(problem)
    return dump(found)


def check_settings(given: Mapping[str, Any]) -> None:
    """Raises :class:`InvalidSettings` for members that fit no endpoint."""
    try:
        problem = find_problem(change(UNSET_SETTINGS, {}, given))
    except InvalidAbilities as exc:
        raise _refuse(exc) from None
    if problem is not None:
        raise _refuse(problem)


def _refuse(problem: InvalidAbilities) -> InvalidSettings:
    field = f"settings.{problem.field}".rstrip(".")
    return InvalidSettings(
        f"settings_invalid: {field}: {problem.text}", metadata={"fields": {field: problem.text}}
    )


def show_settings(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every member of stored settings, with the values that routing assumes."""
    shown = show(read_settings(stated))
    for path in _ASSUMED:
        group, _, name = path.partition(".")
        if shown[group][name] is None:
            shown[group][name] = True
    return shown


def order_parameters(names: Collection[str]) -> list[str]:
    """Returns declared parameters without repeats, in the order of the contract."""
    return [name for name in DECLARABLE if name in names]


def require_tools(declared: Collection[str], tested: Sequence[str] = ()) -> None:
    """Raises :class:`InvalidParameters` for a declared choice of tools without the tools."""
    if "tool_choice" in declared and "tools" not in declared and "tools" not in tested:
        text = "tool_choice needs tools, which is neither declared nor tested."
        raise InvalidParameters(
            f"parameters_invalid: declared_parameters: {text}",
            metadata={"fields": {"declared_parameters": text}},
        )
