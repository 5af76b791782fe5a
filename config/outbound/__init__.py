"""Delivery to receivers outside: webhooks, chats, mail and broadcasts, by one engine.

An app declares its sources in ``CausewayApp.outbound``; each is a duty of ``work``. A source finds
what is due and stores results; ``engine`` makes the attempts, and ``sending`` sends.
"""
