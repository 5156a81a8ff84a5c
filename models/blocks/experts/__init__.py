"""Mixtures of experts: routers, packed and dense experts."""
