from typing import ClassVar

from config.apps import INTERNAL, CausewayApp, ModelDeclaration, Section


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
        "generation": ModelDeclaration("bolt"),
        "feedback": ModelDeclaration("feedback"),
        "journal": INTERNAL,
        "idempotentrequest": INTERNAL,
        "keptanswer": INTERNAL,
        "endpointhealth": INTERNAL,
        "uptime": INTERNAL,
        "providerpace": INTERNAL,
        "usageday": INTERNAL,
        "dailyusage": INTERNAL,
        "hourlyusage": INTERNAL,
        "endpointhour": INTERNAL,
    }
