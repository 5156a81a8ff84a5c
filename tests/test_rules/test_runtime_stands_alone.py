"""An edge server gets runtime and five small packages: `import runtime` must ask for nothing else."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import runtime

REFUSING = """
import sys
class Refuse:
    banned = set("torch onnx onnxscript onnx_ir transformers click rich runtime models exporter quantizer".split())
    banned -= {sys.argv[2]}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.banned:
            raise ImportError(f"runtime must not import {name}")
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
__import__(sys.argv[2])
"""
LISTING = """
import sys
sys.path.insert(0, sys.argv[1])
import runtime, json
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def python(code, *arguments):
    return subprocess.run([sys.executable, "-I", "-c", code, *arguments], capture_output=True, text=True)


def test_import_runtime_needs_nothing_else():
    done = python(REFUSING, str(Path(runtime.__file__).parents[1]), "runtime")
    assert done.returncode == 0, done.stderr


def test_runtime_works_under_another_name(tmp_path):
    shutil.copytree(Path(runtime.__file__).parent, tmp_path / "llm_runtime")
    done = python(REFUSING, str(tmp_path), "llm_runtime")
    assert done.returncode == 0, done.stderr


def test_import_runtime_loads_only_what_it_declares():
    done = python(LISTING, str(Path(runtime.__file__).parents[1]))
    loaded = set(json.loads(done.stdout)) - set(sys.stdlib_module_names) - {"runtime", "__main__"}
    third_party = {name for name in loaded if not name.startswith(("_", "sitecustomize"))}
    assert third_party <= {"numpy", "onnxruntime", "tokenizers", "jinja2", "markupsafe"}


def test_import_runtime_does_not_load_what_only_some_use():
    done = python(LISTING, str(Path(runtime.__file__).parents[1]))
    assert not {"asyncio", "ssl", "jinja2", "onnxruntime", "tokenizers"} & set(json.loads(done.stdout))


def test_the_public_names_exist():
    assert sorted(runtime.__all__, key=str.lower) == sorted(set(runtime.__all__), key=str.lower)
    assert all(hasattr(runtime, name) for name in runtime.__all__)
