"""The one writer of weights.bin: aligned, hashed beside the writing, appended to."""

from hashlib import sha256

import numpy as np

from quantizer.storage.weights_file import ALIGNMENT, SMALL_ALIGNMENT, WeightsWriter


def test_the_hash_is_that_of_the_whole_file(tmp_path):
    path = tmp_path / "weights.bin"
    with WeightsWriter(path) as writer:
        small = writer.add("small", np.arange(5, dtype=np.int64))
        large = writer.add("large", np.arange(100_000, dtype=np.float32))
    assert writer.sha256 == sha256(path.read_bytes()).hexdigest()
    assert (small.offset % SMALL_ALIGNMENT, large.offset % ALIGNMENT) == (0, 0)
    with WeightsWriter(path, append=True) as more:
        scales = more.add("scales", np.ones(7, np.float32))
    assert more.sha256 == sha256(path.read_bytes()).hexdigest() != writer.sha256
    assert np.array_equal(np.fromfile(path, np.float32, 7, offset=scales.offset), np.ones(7))
