"""The programs in examples/ give the tokens of the engine."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import runtime

ROOT = Path(__file__).parents[2]
JAVASCRIPT = ROOT / "examples" / "javascript"
CPP = ROOT / "examples" / "cpp"
PROMPTS = [[5], [5, 6, 7], list(range(3, 40))]
INCLUDES = [CPP / "headers" / "usr" / "include", Path("/usr/local/include"), Path("/usr/include")]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not (JAVASCRIPT / "node_modules").is_dir(), reason="`make examples` installs onnxruntime-node")
@pytest.mark.parametrize("prompt", PROMPTS)
def test_javascript_gives_the_engine_s_tokens(tiny_bundle, prompt):
    with runtime.LLM(tiny_bundle) as llm:
        expected = llm.generate(prompt, max_tokens=12, temperature=0.0).token_ids
    command = ["node", "generate.mjs", str(tiny_bundle), "12", ",".join(map(str, prompt))]
    done = subprocess.run(command, cwd=JAVASCRIPT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert tuple(map(int, done.stdout.split(","))) == expected


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """The C++ example, linked with the library in the wheel of ONNX Runtime."""
    folder = tmp_path_factory.mktemp("cpp")
    headers = next((path for path in INCLUDES if (path / "onnxruntime" / "onnxruntime_cxx_api.h").is_file()), None)
    library = next(Path(importlib.util.find_spec("onnxruntime").origin).parent.glob("capi/libonnxruntime.so.*"), None)
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if headers is None or library is None or compiler is None:
        pytest.skip("no headers of ONNX Runtime (libonnxruntime-dev), no library, or no C++ compiler")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / name).symlink_to(library)
    command = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", str(CPP / "generate.cpp"), "-o", "generate"]
    command += [f"-isystem{headers}", f"-isystem{headers}/onnxruntime", "-L.", "-lonnxruntime", f"-Wl,-rpath,{folder}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / "generate"


@pytest.mark.parametrize("prompt", PROMPTS)
def test_cpp_gives_the_engine_s_tokens(tiny_bundle, compiled, prompt):
    with runtime.LLM(tiny_bundle) as llm:
        expected = llm.generate(prompt, max_tokens=12, temperature=0.0).token_ids
    done = subprocess.run([compiled, tiny_bundle, "12", *map(str, prompt)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert tuple(map(int, done.stdout.split())) == expected


def test_cpp_refuses_what_is_no_bundle(compiled, tmp_path):
    done = subprocess.run([compiled, tmp_path, "12", "5"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("generate: ")
