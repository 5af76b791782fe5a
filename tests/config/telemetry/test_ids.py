"""Random texts that are taken from the system in blocks."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from config.telemetry.ids import RandomIds


def test_ids_have_the_length_and_never_repeat() -> None:
    ids = RandomIds(10)
    made = [ids.make() for _ in range(2_000)]
    assert {len(each) for each in made} == {20}
    assert len(set(made)) == 2_000


def test_threads_never_share_an_id() -> None:
    ids = RandomIds(8)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: ids.make(), range(4_000)))
    assert len(set(made)) == 4_000


def test_a_forked_process_forgets_the_block_of_its_parent() -> None:
    ids = RandomIds(8)
    ids.make()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, " ".join(ids.make() for _ in range(100)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        theirs = set(pipe.read().split())
    assert len(theirs) == 100
    assert theirs.isdisjoint(ids.make() for _ in range(600))
