"""LoRA adapters at run time: PEFT folders as matrices that the graphs of a bundle take as inputs."""
