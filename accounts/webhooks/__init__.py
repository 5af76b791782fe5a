"""Subscriptions to events, and their delivery by webhooks, chat messages and mails.

``models`` has subscriptions and deliveries, ``dispatching`` stores the deliveries of new events,
``delivering`` finds what is due for the engine of ``config.outbound``, and ``messages`` and
``signing`` say what is sent.
"""
