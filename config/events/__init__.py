"""The outbox: what people must be told, stored in the transaction in which it happens.

Apps declare their kinds of events beside their models, and call ``outbox.record_event``. The duty
``deliver_events`` of ``work`` sends what was stored. This room names no app and sends nothing.
"""
