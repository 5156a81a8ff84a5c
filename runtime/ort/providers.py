"""The execution providers that a bundle may run on, by the name of its target."""

PROVIDERS: dict[str, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
CHOICES = ("auto", *PROVIDERS)  # "auto": the one that the bundle was built for
ProviderName = str
