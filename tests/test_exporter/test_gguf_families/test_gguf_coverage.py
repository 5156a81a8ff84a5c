"""Every GGUF architecture is converted and read back by a case, and one that is dropped into the folder is found."""

import runpy
from importlib import reload
from pathlib import Path

from exporter.checkpoint.gguf import architectures, registry


def cases(kind: str) -> set[str]:
    found = runpy.run_path(str(Path(__file__).with_name(f"test_gguf_{kind}.py")))["CASES"]
    return {case[0] for case in found.values()} if isinstance(found, dict) else {case.values[0] for case in found}


def test_every_architecture_is_tried():
    tried = cases("dense") | cases("moe") | cases("hybrid")
    assert tried == set(registry.FAMILIES) - {"internlm2"}  # a llama under another name


def test_a_file_in_the_folder_is_found(tmp_path: Path, monkeypatch):
    text = (Path(architectures.__path__[0]) / "smollm3.py").read_text().replace('"smollm3"', '"smollm9"')
    (tmp_path / "smollm9.py").write_text(text.replace("from ..", "from exporter.checkpoint.gguf."))
    monkeypatch.setattr(architectures, "__path__", [*architectures.__path__, str(tmp_path)])
    try:
        assert "smollm9" in reload(registry).FAMILIES
    finally:
        monkeypatch.undo()
        reload(registry)
