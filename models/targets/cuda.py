"""ONNX Runtime's CUDA provider: half precision, as its attention kernel has no float32."""

from .provider import Provider

PROVIDER = Provider("cuda", "CUDA", ("float16", "bfloat16"), pages=True)
