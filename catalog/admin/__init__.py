"""The console's pages for the catalogue: providers, models, endpoints, prices, proposals."""

from catalog.admin.language_models import LanguageModelAdmin
from catalog.admin.model_endpoints import ModelEndpointAdmin
from catalog.admin.price_versions import PriceVersionAdmin
from catalog.admin.proposals import CatalogProposalAdmin
from catalog.admin.providers import ProviderAdmin

__all__ = [
    "CatalogProposalAdmin",
    "LanguageModelAdmin",
    "ModelEndpointAdmin",
    "PriceVersionAdmin",
    "ProviderAdmin",
]
