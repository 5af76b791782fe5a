"""The live validation of a private endpoint: real calls with the same dialects as its traffic."""

from endpoints.validation.attempt import HostIsNew, HostNeedsTwo, HostScope
from endpoints.validation.checks import KINDS, Reason
from endpoints.validation.probes import MAX_TOKENS, is_same_model
from endpoints.validation.run import Asker, examine, limit_seconds, run
