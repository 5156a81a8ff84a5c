"""Codes and scales as bytes on disk."""
