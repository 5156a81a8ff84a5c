"""ONNX Runtime's CPU provider: float32; in float16 many operators are cast to float32 and back."""

from .provider import Provider

PROVIDER = Provider("cpu", "CPU", ("float32", "float16"), runs_here=True, halves_in_single=True)
