"""OpenAI's Responses interface for every model: requests become chat requests; pure.

https://platform.openai.com/docs/api-reference/responses describes it. Nothing is stored: callers
send the whole conversation with every request. Cost and routing are those of the chat request.
"""
