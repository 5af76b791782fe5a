import re
from typing import ClassVar, Final

from config.apps import INTERNAL, CausewayApp, Finder, MenuEntry, MenuPage, ModelDeclaration, Tab
from config.events.kinds import EventKind

_VIEW: Final = "inference.view_generation"


class InferenceConfig(CausewayApp):
    default = True
    name = "inference"
    verbose_name = "Inference"
    outbound = ("inference.broadcast.sender.broadcaster",)
    collectors = (
        "inference.archive.retention.RetentionCollector",
        "inference.broadcast.progress.BroadcastCollector",
        "inference.settlement.collector.HoldCollector",
    )
    alerts = ("inference.settlement.collector.find_lost",)
    events: ClassVar = (
        EventKind(
            "provider.failing",
            "At least half of the attempts at a provider failed within a minute.",
            "{percent} % of the attempts at {name} failed within a minute.",
            {"provider": "acme", "name": "Acme AI", "failures": 42, "attempts": 60, "percent": 70},
            for_operators=True,
        ),
        EventKind(
            "credential.failing",
            "A provider refuses the operator's credential, or one of an organization.",
            "{provider} refuses a credential of {owner}.",
            {
                "provider": "Acme AI",
                "owner": "the organization",
                "since": "2026-11-23T16:00:00.000000Z",
            },
        ),
        EventKind(
            "guardrail.refusing",
            "A guardrail refused more of an hour's requests than the operator's limit.",
            "The guardrail {guardrail} of {organization} refused {percent} % of {requests} "
            "requests within an hour, most of them by {reason}.",
            {
                "organization": "Acme",
                "id": "0192f0c1-8f6e-4b1e-9f43-3a1d0e9b7a15",
                "guardrail": "Production",
                "reason": "content_filter",
                "refused": 312,
                "requests": 1200,
                "percent": 26,
            },
        ),
        EventKind(
            "history.lost",
            "The database has lost what a worker had stored: nothing is admitted.",
            "The database lost what {worker} stored since {since}, until {until}. New requests are "
            "refused until an operator runs accept_history.",
            {
                "worker": "serve1:812:9f2c41aa",
                "since": "2026-11-23T16:00:00.000000Z",
                "until": "2026-11-23T16:00:21.000000Z",
            },
            for_operators=True,
        ),
        EventKind(
            "spend.anomaly",
            "An organization spends far more than in the same hours of the same weekday before.",
            "{organization} spent ${spent_usd} on {day} until {until} UTC, usually ${usual_usd} by "
            "then on such a weekday.",
            {
                "organization": "Acme",
                "day": "2026-11-23",
                "until": "10:00",
                "spent_usd": "310",
                "usual_usd": "42.5",
            },
        ),
    )
    menu = (
        MenuEntry(
            "Requests",
            "bolt",
            7,
            (
                MenuPage("Requests", "inference.generation"),
                MenuPage("Live", "admin:inference_generation_live", _VIEW),
                MenuPage("Health", "admin:inference_generation_health", _VIEW),
                MenuPage("Errors", "admin:inference_generation_errors", _VIEW),
                MenuPage("Feedback", "inference.feedback"),
            ),
        ),
    )
    models_declared: ClassVar = {
        "generation": ModelDeclaration(
            "bolt",
            words=("requests", "logs", "costs", "usage"),
            tab=Tab("Requests", 7),
            # A whole ID names its partition.
            finders=(Finder("id", re.compile(r"gen-\d+-[0-9a-f]+")),),
        ),
        "feedback": ModelDeclaration("feedback"),
        "journal": INTERNAL,
        "idempotentrequest": INTERNAL,
        "keptanswer": INTERNAL,
        "storedtext": INTERNAL,
        "textkey": INTERNAL,
        "textdeletion": INTERNAL,
        "endpointhealth": INTERNAL,
        "uptime": INTERNAL,
        "workerbeat": INTERNAL,
        "historyloss": INTERNAL,
        "providerpace": INTERNAL,
        "usageday": INTERNAL,
        "dailyusage": INTERNAL,
        "hourlyusage": INTERNAL,
        "endpointhour": INTERNAL,
        "hourlyshare": INTERNAL,
        "hourlyspending": INTERNAL,
        "hourlyfailure": INTERNAL,
        "guardrailcount": INTERNAL,
        "shadowcount": INTERNAL,
        "tokensum": INTERNAL,
    }
