import re
from typing import ClassVar

from config.apps import INTERNAL, Audience, CausewayApp, Finder, ModelDeclaration, Section, Tab


class InferenceConfig(CausewayApp):
    default = True
    name = "inference"
    verbose_name = "Inference"
    section = Section("Traffic", position=4)
    collectors = (
        "inference.archive.retention.RetentionCollector",
        "inference.settlement.collector.HoldCollector",
    )
    models_declared: ClassVar = {
        "generation": ModelDeclaration(
            "bolt",
            tab=Tab("Generations", 9),
            # A whole ID names its partition.
            finders=(Finder("id", re.compile(r"gen-\d+-[0-9a-f]+")),),
        ),
        "feedback": ModelDeclaration("feedback"),
        "journal": INTERNAL,
        "idempotentrequest": ModelDeclaration(
            audience=Audience.NOBODY,
            owned_by="api_key_id IN "
            "(SELECT k.id FROM accounts_apikey AS k WHERE k.organization_id = %(id)s)",
        ),
        "keptanswer": ModelDeclaration(
            audience=Audience.NOBODY, owned_by="organization_id = %(id)s"
        ),
        "endpointhealth": INTERNAL,
        "uptime": INTERNAL,
        "providerpace": INTERNAL,
        "usageday": INTERNAL,
        "dailyusage": INTERNAL,
        "hourlyusage": INTERNAL,
        "endpointhour": INTERNAL,
        "hourlyshare": INTERNAL,
    }
