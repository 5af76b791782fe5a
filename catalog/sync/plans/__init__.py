"""What an import or a price list changes in the catalogue, column by column, as people read it."""
