"""Exact changes of a model that its weights absorb, made before quantizing."""
