"""A model that reads whole texts, under the name that clients use."""

import time
from dataclasses import dataclass, field

from ...encoder.model import Encoder

ROUTES = {"embed": "/v1/embeddings or /api/embed", "score": "/rerank or /score"}


@dataclass
class ServedEncoder:
    """The model and its name."""

    name: str
    encoder: Encoder
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model(self) -> Encoder:
        """What it is made of, as `ServedModel` calls it."""
        return self.encoder

    @property
    def longest(self) -> int:
        """Most tokens of one text."""
        return self.encoder.task.max_tokens
