"""Bounds on the connections of a worker: how many, from where, for how long, and with what in them.

``protocol`` is the server's, and holds what its connections share. ``table`` limits their number
and chooses which one makes room, ``peers`` groups their addresses, ``open_files`` fits the limits
to what the process may open, and ``refusals`` renders, counts and logs what is refused.
"""
