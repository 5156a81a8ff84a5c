"""Embedder: texts to vectors for search, clustering and comparison."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from .encoder.model import Encoder
from .encoder.texts import Text
from .errors import RequestError
from .options import EngineOptions

Vectors = npt.NDArray[np.float32]


class Embedder:
    """An embedding model; its methods may be called from several threads, whose texts then run side by side.

    Args:
        path: the folder of a bundle that `onnxlm export --task embed` wrote.
        provider: "cpu", "cuda", or "auto" for the one that the bundle was built for.
        options: `threads`, `max_queue` and `max_queue_tokens` count.

    Raises:
        BundleError: the folder is not a bundle of an embedding model.
        ProviderError: the provider cannot start; the message says what is missing.

    Example:
        >>> with runtime.Embedder("embedder") as embedder:
        ...     query = embedder.embed("What is the capital of China?", prompt_name="query")
        ...     documents = embedder.embed(["Beijing is the capital of China.", "Gravity attracts."])
        ...     print(documents @ query)  # cosine similarities, where vectors are normalized
    """

    def __init__(self, path: str | Path, provider: str = "auto", options: EngineOptions | None = None) -> None:
        self.encoder = Encoder(path, "embed", provider, options)

    @property
    def dimensions(self) -> int:
        """Numbers of a vector."""
        return self.encoder.task.width

    @property
    def prompts(self) -> dict[str, str]:
        """The bundle's prompts, by the names that `prompt_name` takes."""
        return dict(self.encoder.task.prompts)

    def embed(
        self,
        texts: str | Sequence[Text],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> Vectors:
        """Vectors `[texts, dimensions]`, in the order of the texts; of a single text, `[dimensions]`.

        Args:
            texts: a text, or a list of texts or of lists of token ids; ids are taken as they are.
            prompt_name: which of the bundle's prompts stands in front of each text; None is its default one.
            prompt: a text to stand in front instead, such as "Instruct: …\\nQuery:".
            dimensions: keep the first numbers of each vector only, which is right for models trained so (Matryoshka).
            truncate: leave out the end of a text that is too long, instead of refusing it.

        Raises:
            RequestError, PromptTooLongError: a text cannot be read.
            ExecutionError: a run failed.
        """
        if prompt is not None and prompt_name is not None:
            raise RequestError("prompt and prompt_name: give one of them.")
        encoder = self.encoder
        encoder.check_dimensions(dimensions)
        front = encoder.reader.prompt(prompt_name) if prompt is None else prompt
        single = isinstance(texts, str)
        listed: Sequence[Text] = [texts] if isinstance(texts, str) else texts
        ids = [encoder.reader.ids(text, front, truncate=truncate) for text in listed]
        if not ids:
            return np.zeros((0, dimensions or self.dimensions), np.float32)
        vectors = encoder.vectors(encoder.submit(ids).result(), dimensions)
        return vectors[0] if single else vectors

    def close(self) -> None:
        """Release threads and memory."""
        self.encoder.close()

    def __enter__(self) -> "Embedder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
