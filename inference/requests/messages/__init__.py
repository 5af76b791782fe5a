"""Anthropic's Messages interface for every model: requests become chat requests; pure.

https://platform.claude.com/docs/en/api/messages describes it. The chat request decides what a
request costs and where it goes.
"""
