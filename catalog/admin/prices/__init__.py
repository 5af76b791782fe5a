"""The page on which an operator edits every rate of a price, with its conditions."""

from catalog.admin.prices.page import PRICING, edit_price
