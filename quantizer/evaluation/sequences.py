"""What quantization costs a model that reads whole texts: how far its vectors, or scores, turn from the reference's."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtime.bundle.bundle import Bundle
from runtime.bundle.sequence_task import SequenceQuality
from runtime.encoder.texts import TextReader
from runtime.errors import QuantizationError
from runtime.ort.sequence_runner import SequenceRunner
from runtime.ort.session import onnxruntime
from runtime.text.tokenizer import Tokenizer

from ..progress import Progress

Rows = npt.NDArray[np.float64]

# Of several kinds, lengths, scripts and languages: for who names no texts of their own.
SAMPLES = (
    "What is the capital of China?",
    "The capital of China is Beijing, a city of more than twenty million people in the north of the country.",
    "Explain gravity",
    "Gravity is a force that attracts two bodies towards each other. It gives weight to physical objects and is "
    "responsible for the movement of planets around the sun.",
    "How do I reset the password of my account?",
    "To reset your password, open the settings, choose Security, and follow the link that we send to you by mail.",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
    "SELECT name, count(*) FROM orders WHERE total > 100 GROUP BY name ORDER BY 2 DESC;",
    "Die Sitzung wurde auf Donnerstag verschoben, weil der Raum am Mittwoch nicht frei ist.",
    "Les résultats du troisième trimestre dépassent les attentes des analystes.",
    "El médico recomendó descansar dos semanas y beber mucha agua.",
    "今天的天气很好，我们去公园散步吧。",
    "東京タワーの高さは333メートルです。",
    "Погода сегодня хорошая, и мы идём в парк.",
    "الطقس جميل اليوم",
    "The contract may be terminated by either party with a notice of thirty days, in writing, to the address above.",
    "E = mc² relates mass and energy; c is the speed of light in vacuum, about 3·10⁸ m/s.",
    "🙂 thanks!! see u tmrw",
    "red shoes size 42",
    "1. Preheat the oven to 180 °C. 2. Mix flour, sugar and eggs. 3. Bake for 35 minutes, and let it cool.",
    "The patient reports mild headaches since Monday, no fever, and no history of migraine in the family.",
    "Error 404: the page you are looking for does not exist.",
    "In 1969 two astronauts walked on the Moon while a third one stayed in orbit around it.",
    "Bank",
)


def measure_sequences(
    bundle: Bundle, reference: Bundle, texts: Sequence[str], name: str, progress: Progress
) -> SequenceQuality:
    """Compare text by text.

    Args:
        bundle, reference: of one model and task.
        texts: at least one; the end of long ones is left out.
        name: what the texts are called in the manifest.
        progress: is told how many are done.

    Raises:
        QuantizationError: no texts.
    """
    if not texts:
        raise QuantizationError("there are no texts to compare on. Give a file with a text per line.")
    ours, theirs = (_rows(one, texts, progress) for one in (bundle, reference))
    cosines = _cosines(ours, theirs)
    if ours.shape[1] == 1:  # the angle of one number says nothing: that of all texts' scores, as one vector, does
        cosines = _cosines(ours.T, theirs.T)
    version = str(onnxruntime().__version__)
    return SequenceQuality(
        cosine=float(cosines.mean()), cosine_min=float(cosines.min()),
        max_difference=float(np.abs(ours - theirs).max()), text=name, texts=len(texts), onnxruntime=version,
    )  # fmt: skip


def require_same_task(bundle: Bundle, reference: Bundle) -> None:
    """Two bundles whose numbers mean the same.

    Raises:
        QuantizationError: their tasks or sizes differ.
    """
    ours, theirs = bundle.manifest.task, reference.manifest.task
    if ours is None or theirs is None or (ours.kind, ours.width) != (theirs.kind, theirs.width):
        raise QuantizationError(f"{bundle.folder} and {reference.folder} do not give the same kind of numbers.")


def _rows(bundle: Bundle, texts: Sequence[str], progress: Progress) -> Rows:
    task, manifest = bundle.manifest.task, bundle.manifest
    assert task is not None
    tokenizer = Tokenizer(bundle.path("tokenizer.json"), manifest.tokens.special)
    reader = TextReader(task, tokenizer, manifest.architecture.vocab_size)
    front, runner, rows = reader.prompt(None), SequenceRunner(bundle, "cpu"), []
    for place, text in enumerate(texts):
        ids = (
            reader.pair(texts[0], text, truncate=True) if task.pair_template else reader.ids(text, front, truncate=True)
        )
        rows.append(runner.rows([ids])[0])
        progress("evaluating", place + 1, len(texts))
    return np.stack(rows).astype(np.float64)


def _cosines(one: Rows, other: Rows) -> Rows:
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: Rows = (one * other).sum(axis=1) / np.maximum(norms, 1e-30)
    return cosines
