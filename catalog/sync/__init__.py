"""Public price lists: their formats, what of them differs from the catalogue, and what waits.

``documents`` reads JSON with exact decimals, a module a source makes offers of it, ``planning``
compares the offers with the catalogue, and ``proposals`` keeps what a person must decide.
"""
