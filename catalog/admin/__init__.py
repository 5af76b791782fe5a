"""The console's pages for the catalogue: providers, models, public endpoints and prices."""

from catalog.admin.language_models import LanguageModelAdmin
from catalog.admin.model_endpoints import ModelEndpointAdmin
from catalog.admin.price_versions import PriceVersionAdmin
from catalog.admin.providers import ProviderAdmin

__all__ = ["LanguageModelAdmin", "ModelEndpointAdmin", "PriceVersionAdmin", "ProviderAdmin"]
