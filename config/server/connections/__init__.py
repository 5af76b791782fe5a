"""Bounds on the connections of a worker: how many, from where, for how long, and with what in them.

``protocol`` is the server's, over ``parser``; ``registry`` holds what its connections share.
``table`` limits their number and chooses which one makes room, ``peers`` groups their addresses,
``open_files`` fits the limits to what the process may open. ``deadlines`` measures how long a
caller may be awaited, ``heads`` checks what it sent, ``unread`` whether it reads. ``refusals``
renders, counts and logs what is refused.
"""
