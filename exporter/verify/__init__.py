"""Exported graphs against an independent reference."""
