"""Anthropic's Messages interface in front of every model: its words in, the words of chat beyond.

As https://platform.claude.com/docs/en/api/messages describes it. Everything here is pure; what a
request costs and where it goes is decided by the chat request that it becomes.
"""
