"""Conversations to prompts, and answers back to messages."""
