"""Puts a conversation into the order that servers demand: each call has its one result behind it.

A session that was interrupted, cut short or compacted has calls without a result and results
without their call. Every later turn would be refused for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

# What stands for the turns and results that a conversation lacks.
NO_RESULT: Final = "There is no result."
NO_CALL: Final = "[tool_result]"
BEGIN: Final = "Begin."
CONTINUE: Final = "Continue where your last answer ends."
NOTED: Final = "Noted."

_Part = TypeVar("_Part")


class PairingStep(NamedTuple):
    """A message of the ordered conversation, by its position in the given one.

    ``lacking`` makes it the result that this call of the message lacks, and ``is_stray`` says that
    it is a result without a call.
    """

    position: int
    lacking: str | None = None
    is_stray: bool = False


def pair_results(
    calls: Sequence[Sequence[str]], results: Sequence[str | None]
) -> list[PairingStep] | None:
    """Returns the order in which each call has its one result behind it; ``None`` if it has.

    ``calls`` are the ids of the calls of each message, and ``results`` the id of the call that a
    message is the result of.
    """
    answers: dict[str, int] = {}
    waiting = [Counter(ids) for ids in calls]
    told: list[list[PairingStep]] = [[] for _ in calls]
    strays = set()
    for position, result in enumerate(results):
        answers.update(dict.fromkeys(calls[position], position))
        if result is None:
            continue
        answer = answers.get(result)
        if answer is None or not waiting[answer][result]:
            strays.add(position)
        else:
            waiting[answer][result] -= 1
            told[answer].append(PairingStep(position))
    steps: list[PairingStep] = []
    for position, result in enumerate(results):
        if result is None:
            steps += [PairingStep(position), *told[position]]
            steps += [PairingStep(position, each) for each in waiting[position].elements()]
        elif position in strays:
            steps.append(PairingStep(position, is_stray=True))
    is_sound = not strays and [step.position for step in steps] == [*range(len(results))]
    return None if is_sound else steps


def pair_parts(
    turns: Iterable[tuple[str, Sequence[_Part]]],
    read: Callable[[_Part], tuple[str | None, str | None]],
    write: Callable[[str], _Part],
    tell: Callable[[_Part], list[_Part]],
) -> list[tuple[str, list[_Part]]] | None:
    """Returns turns of parts in which each call has its result first behind it; ``None`` if so.

    ``read`` returns the id of a call, and that of the call that a part is the result of. ``write``
    makes the result that a call lacks, and ``tell`` tells a result without a call.
    """
    units: list[tuple[str, list[_Part]]] = []
    for role, parts in turns:
        if role != "assistant":
            units += ((role, [part]) for part in parts)
        elif units and units[-1][0] == role:
            units[-1][1].extend(parts)
        else:
            units.append((role, [*parts]))
    named = [[read(part) for part in parts] for _, parts in units]
    steps = pair_results(
        [[call for call, _ in each if call is not None] for each in named],
        # A unit with a result has nothing else.
        [each[0][1] if each else None for each in named],
    )
    if steps is None:
        return None
    ordered: list[tuple[str, list[_Part]]] = []
    for position, lacking, is_stray in steps:
        role, parts = units[position]
        if lacking is not None:
            role, parts = "user", [write(lacking)]
        elif is_stray:
            parts = tell(parts[0])
        if ordered and ordered[-1][0] == role:
            ordered[-1][1].extend(parts)
        else:
            ordered.append((role, [*parts]))
    return ordered
