"""OpenAI's HTTP API: completions, chat, responses, tokens."""
