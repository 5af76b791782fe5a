"""Kills the primary under load, again and again: python -m tests.drills.failover --kills 10

Builds on this machine what ``docs/deploy/ha`` describes, from its files: three PostgreSQL under
Patroni with etcd, HAProxy, two ``serve`` hosts and one ``work``, with a simulated upstream. Streams
that outlast a failover and short requests go on all the time. Each kill (SIGKILL) ends
PostgreSQL and Patroni of the primary; ``--hangs`` stops them instead, as if their machine hung, and
lets them go on 20 seconds after another one was promoted. ``--outages`` keeps the standbys from
being promoted for longer than a worker may be silent: the sweeper must not end what still runs.
``--standbys`` lets the synchronous standby hang, ``--poolers`` ends PgBouncer (with ``--pooled``).
``--losses`` loses history on purpose: an asynchronous standby is promoted that lacks some seconds,
and the workers must notice it, admit nothing, and settle it again once it is accepted.

Prints one JSON object. Exits with 1 if an answer was lost or charged twice, if a request failed
otherwise than with 503 and ``Retry-After``, if a stream broke off, if a loss of history was told
wrongly or anything was admitted after it, or if the ledger contradicts itself; with ``--figures``
also if the service was back, or a loss was noticed, later than 3 seconds after a promotion, if a
switchover lasted longer than 5, or a management request longer than 2.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from tests.support.clusters import ports

DATABASE, POOLER, GATEWAY, *SERVICES = (ports.reserve() for _ in range(5))
# Made-up data never goes into the database that the caller's environment names.
os.environ["DATABASE_URL"] = f"postgres://causeway:{ports.PASSWORD}@127.0.0.1:{DATABASE}/causeway"
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"

import django

import tests.support.embedded  # noqa: F401 - makes secrets and certificates, before settings are read

django.setup()

import contextlib
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final

import requests
from django.db import connection

from inference.models import Generation, Journal
from tests.support import factories
from tests.support.clusters.callers import BROKEN, OTHER, REFUSED, WHOLE, Callers, examine
from tests.support.clusters.managers import Managers
from tests.support.clusters.patroni import Cluster, Node, run_cluster
from tests.support.clusters.pooler import ClusterPooler
from tests.support.clusters.programs import (
    PACKAGES,
    find_missing,
    find_missing_patroni,
    send_signal,
)
from tests.support.clusters.services import run_service
from tests.support.inference.site import Site, own_site
from tests.support.ledger import differences
from tests.support.machine.waiting import wait_until
from tests.support.processes import manage

STREAMS: Final = 16
PLAIN: Final = 4
# A stream outlasts the time until the key of a dead primary expires, and the promotion.
SECONDS: Final = 36
# An outage that is longer than the lease of a generation, HOLD_LEASE.
OUTAGE_SECONDS: Final = 65
# How long a machine hangs after another one was promoted, and a standby alone.
HANG_SECONDS: Final = 20
STANDBY_SECONDS: Final = 12
# How long standbys lack what the primary commits, before it is lost.
BEHIND_SECONDS: Final = 4
# The figures of a quiet machine: the first answer, or the notice of a loss, after the new primary
# takes writes; the time without an answer in a switchover; and what a management request may last.
BACK_SECONDS: Final = 3.0
SWITCHOVER_SECONDS: Final = 5.0
MANAGEMENT_SECONDS: Final = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.drills.failover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--hangs", type=int, default=0, help="for 20 s beyond the promotion")
    parser.add_argument("--switchovers", type=int, default=0)
    parser.add_argument("--outages", type=int, default=0, help="without a primary for a minute")
    parser.add_argument("--standbys", type=int, default=0, help="the synchronous one hangs")
    parser.add_argument("--poolers", type=int, default=0, help="PgBouncer ends; needs --pooled")
    parser.add_argument("--losses", type=int, default=0, help="history is lost on purpose")
    parser.add_argument("--pooled", action="store_true", help="PgBouncer stands before HAProxy")
    parser.add_argument("--figures", action="store_true", help="fail if it lasts too long, too")
    parser.add_argument("--etcds", type=int, choices=(1, 3), default=3)
    options = parser.parse_args()
    if missing := find_missing(*PACKAGES) or find_missing_patroni():
        sys.exit(missing)
    with contextlib.ExitStack() as stack:
        say("three PostgreSQL, etcd and HAProxy start")
        cluster = stack.enter_context(
            run_cluster(etcds=options.etcds, database=DATABASE, gateway=GATEWAY, services=SERVICES)
        )
        say("the database is migrated")
        site = stack.enter_context(own_site())
        changes = {}
        if options.pooled:
            cluster.pooler = stack.enter_context(
                ClusterPooler(cluster.directory, port=POOLER, database=DATABASE)
            )
            changes["DATABASE_URL"] = os.environ["DATABASE_URL"].replace(str(DATABASE), str(POOLER))
        for port in SERVICES:
            stack.enter_context(run_service("serve", "--port", str(port), **changes))
        stack.enter_context(run_service("work", **changes))
        wait_until(is_served, "the two hosts do not answer", seconds=90)
        losses = [
            *[lose_by_kill] * options.kills,
            *[lose_by_hang] * options.hangs,
            *[lose_by_switchover] * options.switchovers,
            *[lose_for_long] * options.outages,
            *[lose_standby] * options.standbys,
            *[lose_pooler] * options.poolers,
            *[lose_history] * options.losses,
        ]
        report = run(cluster, site, losses)
    print(json.dumps(report, indent=2))
    is_passed = report["is_passed"] and (report["is_in_time"] or not options.figures)
    sys.exit(0 if is_passed else 1)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def is_served() -> bool:
    addresses = [f"http://127.0.0.1:{port}/readyz" for port in (*SERVICES, GATEWAY)]
    with contextlib.suppress(requests.RequestException):
        return all(requests.get(each, timeout=5).status_code == 200 for each in addresses)
    return False


def run(cluster: Cluster, site: Site, losses: list[Callable[[Cluster], float]]) -> dict[str, Any]:
    """Takes primaries away under load, and returns what the callers and the ledger say."""
    seconds = SECONDS + OUTAGE_SECONDS if lose_for_long in losses else SECONDS
    site.publish("sim-slow:0,1", price=factories.make_price())
    short = factories.make_model("acme/swift")
    site.publish("sim-echo", model=short, price=factories.make_price())
    words = {"role": "user", "content": " ".join(["word"] * seconds)}
    callers = Callers(
        [f"http://127.0.0.1:{GATEWAY}"],
        site.tenant.api_key,
        streams=STREAMS,
        plain=PLAIN,
        stream_body={"model": site.model.slug, "messages": [words], "max_tokens": 200},
        plain_body={"model": short.slug, "messages": [words], "max_tokens": 200},
        spread=seconds,
    )
    promoted, back, pauses, lost_at = [], [], [], []
    managers = Managers(
        [f"http://127.0.0.1:{port}" for port in SERVICES], site.tenant.management_key
    )
    with callers, managers:
        for number, lose in enumerate(losses, 1):
            callers.wait_for_open_streams(STREAMS // 2, 2 * seconds)
            lost_at.append(time.monotonic())
            promoted_at = lose(cluster)
            promoted.append(round(promoted_at - lost_at[-1], 1))
            back.append(round(callers.wait_for_success(promoted_at), 1))
            pauses.append(round(callers.longest_pause(lost_at[-1]), 1))
            say(f"{number}: promoted after {promoted[-1]} s, served {back[-1]} s later")
            cluster.wait_until_whole()
    # This process's own connection went with a primary.
    connection.close()
    wait_until(lambda: not Journal.objects.exists(), "not everything is settled", seconds=240)
    report = describe(callers, site, lost_at)
    report["seconds_to_promotion"], report["seconds_from_promotion_to_success"] = promoted, back
    report["seconds_without_an_answer"] = pauses
    report["management"] = managers.count_since(0)
    meanwhile = [each for each in managers.log if each.began_at >= lost_at[0]]
    slow = sorted(meanwhile, key=lambda each: -each.seconds)[:5]
    switched = [
        pause for pause, lose in zip(pauses, losses, strict=True) if lose is lose_by_switchover
    ]
    # After a loss callers come back when an operator has accepted it.
    returned = [each for each, lose in zip(back, losses, strict=True) if lose is not lose_history]
    returned += [each["seconds_from_promotion_to_notice"] for each in _LOSSES]
    report["is_in_time"] = (
        max(returned) <= BACK_SECONDS
        and max(switched, default=0) <= SWITCHOVER_SECONDS
        and slow[0].seconds <= MANAGEMENT_SECONDS
    )
    report["management_slowest"] = [
        f"{each.name} {each.status} {each.seconds:.2f} s, {each.began_at - lost_at[0]:.1f} s after "
        "the first loss"
        for each in slow
    ]
    report["problems"] += managers.problems()[:5]
    report["lost_history"] = _LOSSES
    report["is_passed"] = (
        report["is_passed"]
        and not managers.problems()
        and not any(each["admitted_meanwhile"] for each in _LOSSES)
        and all(each["is_told_rightly"] for each in _LOSSES)
    )
    return report


def lose_by_kill(cluster: Cluster) -> float:
    """Kills the primary, and starts it again when another one is; returns when that was."""
    lost, others = find_nodes(cluster)
    lost.kill()
    promoted_at = wait_for_promotion(others)
    lost.start()
    return promoted_at


def lose_by_hang(cluster: Cluster) -> float:
    """Stops the primary, which goes on where it was long after another one was promoted."""
    lost, others = find_nodes(cluster)
    lost.freeze()
    promoted_at = wait_for_promotion(others)
    time.sleep(HANG_SECONDS)
    lost.thaw()
    return promoted_at


def lose_standby(cluster: Cluster) -> float:
    """Stops the synchronous standby for some seconds: every commit waits for it."""
    lost, others = find_nodes(cluster)
    [name] = [each["name"] for each in lost.members() if each["role"] == "sync_standby"]
    [standby] = [node for node in others if node.name == name]
    standby.freeze()
    time.sleep(STANDBY_SECONDS)
    standby.thaw()
    return time.monotonic()


def lose_pooler(cluster: Cluster) -> float:
    """Ends PgBouncer, which is started again."""
    assert cluster.pooler is not None, "needs --pooled"
    cluster.pooler.kill()
    time.sleep(1)
    cluster.pooler.start()
    return time.monotonic()


def lose_history(cluster: Cluster) -> float:
    """Promotes an asynchronous standby that lacks some seconds; accepts it when it is noticed.

    Returns when it was accepted.
    """
    lost, others = find_nodes(cluster)
    lost.configure(synchronous_mode=False, maximum_lag_on_failover=1 << 30)
    wait_until(
        lambda: all(each["role"] != "sync_standby" for each in lost.members()),
        "the end of synchronous replication",
    )
    wait_until(lambda: all(node.find_receivers() for node in others), "streaming standbys")
    receivers = [pid for node in others for pid in node.find_receivers()]
    send_signal(receivers, signal.SIGSTOP)
    behind_at = time.time()
    time.sleep(BEHIND_SECONDS)
    lost.kill()
    killed_at = time.time()
    # What waits in their sockets is lost with them.
    send_signal(receivers, signal.SIGKILL)
    promoted_at = wait_for_promotion(others)
    wait_until(lambda: all(reason == "history" for reason in reasons()), "no notice", seconds=60)
    noticed_at, told_by = time.monotonic(), time.time()
    lost.start()
    with database() as cursor:
        newest = "SELECT count(*), max(id) FROM inference_generation"
        cursor.execute(newest)
        before = cursor.fetchone()
        time.sleep(3)
        cursor.execute(newest)
        admitted = cursor.fetchone() != before
    told = json.loads(manage("accept_history", "--json").stdout)["lost"]
    accepted_at = time.monotonic()
    _LOSSES.append(
        {
            "behind_since": behind_at,
            "killed_at": killed_at,
            "told": told,
            "is_told_rightly": bool(told)
            and all(is_right(each, behind_at, told_by) for each in told),
            "seconds_from_promotion_to_notice": round(noticed_at - promoted_at, 1),
            "admitted_meanwhile": admitted,
        }
    )
    wait_until(is_served, "no answer after the acknowledgement", seconds=60)
    cluster.wait_until_running()
    primary = cluster.find_primary()
    assert primary is not None
    primary.configure(synchronous_mode=True)
    return accepted_at


_LOSSES: Final[list[dict[str, Any]]] = []


def is_right(told: dict[str, str], behind_at: float, told_by: float) -> bool:
    """Returns whether a span is from the last heartbeat that a standby has to the last commit.

    Heartbeats come each second, and a worker knows the database's time to some milliseconds. Until
    its next heartbeat it may commit on the new primary.
    """
    since, until = (datetime.fromisoformat(told[name]).timestamp() for name in ("since", "until"))
    return behind_at - BEHIND_SECONDS <= since <= behind_at < until <= told_by + 1


def reasons() -> list[str]:
    """Returns why each host is not ready."""
    urls = [f"http://127.0.0.1:{port}/readyz" for port in SERVICES]
    return [str(requests.get(url, timeout=5).json().get("reason")) for url in urls]


@contextlib.contextmanager
def database() -> Iterator[Any]:
    """Yields a cursor on the present primary."""
    connection.close()
    with connection.cursor() as cursor:
        yield cursor
    connection.close()


def lose_for_long(cluster: Cluster) -> float:
    """Kills the primary, and stops the standbys for longer than a lease."""
    lost, others = find_nodes(cluster)
    for node in others:
        node.freeze()
    lost.kill()
    time.sleep(OUTAGE_SECONDS)
    for node in others:
        node.thaw()
    promoted_at = wait_for_promotion(others)
    lost.start()
    return promoted_at


def lose_by_switchover(cluster: Cluster) -> float:
    """Makes the synchronous standby the primary, as an operator does."""
    lost, others = find_nodes(cluster)
    [standby] = [each["name"] for each in lost.members() if each["role"] == "sync_standby"]
    orders = {"leader": lost.name, "candidate": standby}
    url = f"http://127.0.0.1:{lost.rest_port}/switchover"
    with ThreadPoolExecutor(1) as pool:
        # Patroni answers seconds after it has promoted.
        answering = pool.submit(requests.post, url, json=orders, timeout=60)
        promoted_at = wait_for_promotion(others)
        answer = answering.result()
    assert answer.status_code == 200, answer.text
    return promoted_at


def find_nodes(cluster: Cluster) -> tuple[Node, list[Node]]:
    """Returns the primary and the standbys."""
    primary = cluster.find_primary()
    assert primary is not None
    return primary, [node for node in cluster.nodes if node is not primary]


def wait_for_promotion(nodes: list[Node]) -> float:
    wait_until(
        lambda: any(node.ask("primary") == 200 for node in nodes), "no node is promoted", seconds=90
    )
    return time.monotonic()


def describe(callers: Callers, site: Site, lost_at: list[float]) -> dict[str, Any]:
    found = examine(callers.log, site.tenant.organization)
    opened = [
        asked
        for moment in lost_at
        for asked in callers.log
        if asked.is_stream and asked.was_open_at(moment)
    ]
    swept = Generation.objects.filter(error_type="abandoned")
    verified = manage("verify_ledger", "--json")
    contradictions = [*map(str, differences())]
    return {
        "failovers": len(lost_at),
        "requests": len(callers.log),
        "acknowledged": found.outcomes[WHOLE],
        "acknowledged_lost": len(found.lost),
        "charged_twice": len(found.charged_twice),
        "refused_and_charged": len(found.refused_and_charged),
        "streams_open_at_a_failover": len(opened),
        "streams_that_went_on": sum(asked.is_whole for asked in opened),
        "refused_with_retry_after": found.outcomes[REFUSED],
        "other_failures": found.outcomes[BROKEN] + found.outcomes[OTHER],
        "swept": swept.count(),
        "swept_and_charged": swept.filter(cost_nano__gt=0).count(),
        "open_holds": found.open_holds,
        "verify_ledger": json.loads(verified.stdout),
        "problems": [*found.lost, *found.charged_twice, *found.refused_and_charged, *found.other,
                     *contradictions][:20],
        "is_passed": found.is_clean
        and not contradictions
        and verified.returncode == 0
        and all(asked.is_whole for asked in opened),
    }  # fmt: skip


if __name__ == "__main__":
    main()
