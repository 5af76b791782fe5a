"""Anthropic's Messages interface for every model: requests become chat requests; pure.

https://platform.claude.com/docs/en/api/messages describes it. Cost and routing are those of the
chat request.
"""
