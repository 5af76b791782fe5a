"""The outbox: events that people must know of, stored in the transaction in which they happen.

Apps declare their kinds of events beside their models, and call ``outbox.record_event``. The duty
``deliver_events`` of ``work`` sends what was stored. This room names no app and sends nothing.
"""
