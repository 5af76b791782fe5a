"""Bounds on the connections of a worker: how many, from where, for how long, and with what in them.

``protocol`` is the server's, over ``parser``; ``registry`` holds what its connections share.
``table`` limits their number and chooses which one makes room, ``peers`` groups their addresses,
``open_files`` fits the limits to what the process may open. ``deadlines`` limits the time that a
connection waits for its caller, ``heads`` checks heads, ``unread`` watches slow readers.
``refusals`` renders, counts and logs what is refused.
"""
