"""PEFT LoRA adapters, merged into the weights while they are read (Hu et al. 2021)."""

from .merge import merge_lora

__all__ = ["merge_lora"]
