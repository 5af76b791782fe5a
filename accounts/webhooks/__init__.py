"""Subscriptions to events, and their delivery by webhooks, chat messages and mails.

``models`` has subscriptions and deliveries, ``dispatching`` stores the deliveries of new events,
``delivering`` is the duty that makes them due, ``sending`` makes one attempt, and ``messages`` and
``signing`` say what is sent.
"""
