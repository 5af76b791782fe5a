"""The console's lists: their pages, their files, their filters, and the search over all of them."""
