"""`onnxlm doctor`: what it finds here, and what it would say elsewhere."""

import json

from click.testing import CliRunner

from runtime.advice import doctor
from runtime.advice.doctor import Diagnosis, Provider, diagnose
from runtime.cli.main import main
from runtime.host.machine import Machine, read_bandwidth, this_machine, usable_cores
from runtime.host.packages import Package, onnxruntime_wheels, packages

PLAIN = Machine("Linux x86_64", "a processor", 4, (), 8 << 30, 10e9)


def test_the_cpu_runs_a_graph_here():
    done = CliRunner().invoke(main, ["doctor", "--quick"])
    assert done.exit_code == 0, done.output
    assert "ready: ran a graph" in done.output


def test_json_has_the_facts():
    facts = json.loads(CliRunner().invoke(main, ["doctor", "--json", "--quick"]).stdout)
    assert facts["runs_on_cpu"] is True
    assert facts["machine"]["cores"] == usable_cores()
    assert {"numpy", "tokenizers"} <= {package["name"] for package in facts["packages"] if package["usable"]}


def test_cuda_says_what_is_missing():
    cuda = next(provider for provider in diagnose(PLAIN).providers if provider.name == "cuda")
    assert cuda.problem is None or "pip" in cuda.problem or "driver" in cuda.problem


def test_two_wheels_are_a_problem_with_a_remedy(monkeypatch):
    monkeypatch.setattr(doctor, "onnxruntime_wheels", lambda: ("onnxruntime 1.32.0", "onnxruntime-gpu 1.31.1"))
    (problem,) = diagnose(PLAIN).problems
    assert "overwrite each other" in problem
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in problem


def test_one_wheel_is_installed_here():
    assert len(onnxruntime_wheels()) == 1


def test_an_old_package_is_a_problem(monkeypatch):
    monkeypatch.setattr(doctor, "packages", lambda: (Package("numpy", "base", "1.9.0", "1.26"),))
    assert diagnose(PLAIN).problems == ("numpy 1.9.0 is older than 1.26: pip install --upgrade 'onnxlm'",)


def test_versions_compare_as_numbers():
    assert Package("x", "base", "1.10.0+cpu", "1.9").usable
    assert not Package("x", "base", "1.9.9", "1.10").usable
    assert not Package("x", "base", None, None).usable


def test_packages_come_from_our_own_metadata():
    extras = {package.name: package.extra for package in packages()}
    assert extras["numpy"] == "base"
    assert extras["onnxruntime"] == "cpu"


def test_a_cpu_that_does_not_run_is_exit_code_1(monkeypatch):
    broken = Diagnosis((Provider("cpu", "it is a toaster"),), {}, ("it is a toaster",), ())
    monkeypatch.setattr(doctor, "diagnose", lambda _: broken)
    done = CliRunner().invoke(main, ["doctor", "--quick"])
    assert done.exit_code == 1
    assert "PROBLEM    it is a toaster" in done.output


def test_advice_follows_from_the_figures():
    advice = " ".join(diagnose(PLAIN).advice)
    assert "10 GB/s from memory" in advice
    assert "at most 16 steps a second" in advice  # 10 GB/s over 0.625 GB of weights
    assert "without VNNI" in advice


def test_bandwidth_is_measured():
    assert 1e8 < read_bandwidth(1, size=8 << 20) < 1e13
    assert this_machine(measure=False).read_bandwidth == 0
