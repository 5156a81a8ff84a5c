"""Limits of control groups, read from trees as the kernel shows them."""

import sys

import pytest

from runtime.host.cgroups import ControlGroups

V2 = "29 23 0:26 {shown} /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 31 0:32 {shown} /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"
MIB = 1 << 20


def tree(tmp_path, own, mounts, files):
    for name, text in {"proc/self/cgroup": own, "proc/self/mountinfo": mounts, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return ControlGroups(tmp_path)


def memory(folder, limit, used, cache=0, high="max"):
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.high": high,
        f"{folder}/memory.current": used,
        f"{folder}/memory.stat": f"anon 5\nfile {cache}\ninactive_file {cache}\nactive_file 0\nshmem 9\n",
    }


ROOT = "sys/fs/cgroup"
SERVICE = f"{ROOT}/system.slice/onnxlm.service"


def test_the_own_group_of_systemd_and_those_above_count(tmp_path):
    files = memory(SERVICE, 900 * MIB, 100 * MIB) | memory(f"{ROOT}/system.slice", 500 * MIB, 300 * MIB)
    groups = tree(tmp_path, "0::/system.slice/onnxlm.service\n", V2.format(shown="/"), files)
    assert groups.memory_left() == 200 * MIB


def test_page_cache_is_free_and_memory_high_is_a_limit(tmp_path):
    files = memory(SERVICE, 900 * MIB, 400 * MIB, cache=300 * MIB, high=600 * MIB)
    groups = tree(tmp_path, "0::/system.slice/onnxlm.service\n", V2.format(shown="/"), files)
    assert groups.memory_left() == 500 * MIB


def test_a_container_sees_its_own_group_as_the_root(tmp_path):
    files = memory(ROOT, 300 * MIB, 100 * MIB) | {f"{ROOT}/cpu.max": "150000 100000"}
    for own, shown in (("/", "/"), ("/docker/abc", "/docker/abc"), ("/../other", "/")):
        groups = tree(tmp_path, f"0::{own}\n", V2.format(shown=shown), files)
        assert (groups.memory_left(), groups.processors()) == (200 * MIB, 1.5)


def test_version_one(tmp_path):
    files = {
        f"{ROOT}/memory/docker/a/memory.limit_in_bytes": 300 * MIB,
        f"{ROOT}/memory/docker/a/memory.usage_in_bytes": 200 * MIB,
        f"{ROOT}/memory/docker/a/memory.stat": f"inactive_file 7\ntotal_inactive_file {50 * MIB}\n",
        f"{ROOT}/memory/memory.limit_in_bytes": 9223372036854771712,
        f"{ROOT}/memory/memory.usage_in_bytes": 5,
        f"{ROOT}/cpu/docker/cpu.cfs_quota_us": 200000,
        f"{ROOT}/cpu/docker/cpu.cfs_period_us": 100000,
        f"{ROOT}/cpu/cpu.cfs_quota_us": -1,
    }
    own = "4:memory:/docker/a\n3:cpu:/docker/a\n1:name=systemd:/\n"
    groups = tree(tmp_path, own, V1.format(shown="/", name="memory") + V1.format(shown="/", name="cpu"), files)
    assert (groups.memory_left(), groups.processors()) == (150 * MIB, 2.0)


@pytest.mark.parametrize("limit", ["max", ""])
def test_without_limits_there_are_none(tmp_path, limit):
    groups = tree(tmp_path, "0::/\n", V2.format(shown="/"), memory(ROOT, limit, 5) | {f"{ROOT}/cpu.max": "max 100000"})
    assert (groups.memory_left(), groups.processors()) == (sys.maxsize, float("inf"))
    assert ControlGroups(tmp_path / "nothing").memory_left() == sys.maxsize
