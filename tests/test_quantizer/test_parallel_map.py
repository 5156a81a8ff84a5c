"""Tasks on several cores: results in order, few at once, and each with its own thread for matrix products."""

import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from threadpoolctl import threadpool_info

from quantizer.parallel import parallel_map, threads


def blas_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_results_come_in_order():
    def task(number):
        time.sleep(0.002 * (number % 3))
        return number

    assert list(parallel_map(partial(task, number) for number in range(20))) == list(range(20))


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_task_needs_no_thread(count):
    tasks = [threading.current_thread] * count
    assert list(parallel_map(tasks)) == [threading.main_thread()] * count


def test_no_more_are_made_than_asked_for():
    begun = []
    results = parallel_map((partial(begun.append, number) for number in range(10)), at_once=1)
    next(results)
    time.sleep(0.05)
    assert len(begun) <= 2
    results.close()


def test_products_take_one_thread_while_tasks_share_the_cores():
    before = blas_threads()
    assert set.union(*parallel_map([blas_threads] * 4)) <= {1}
    assert blas_threads() == before


def test_after_a_failure_nothing_more_is_begun():
    begun = []

    def task(number):
        begun.append(number)
        if number == 2:
            raise ValueError(number)

    with pytest.raises(ValueError, match="2"):
        list(parallel_map(partial(task, number) for number in range(100)))
    time.sleep(0.05)
    assert len(begun) <= 3 + 2 * threads()


LEFT = """
import time
from quantizer.parallel import parallel_map

left = [parallel_map([int, *[lambda: time.sleep(1)] * 5], 2)]
next(left[0])
left.append(left)  # closed by nobody but the end of the process
del left
"""


def test_a_process_ends_with_work_that_nobody_waits_for():
    subprocess.run([sys.executable, "-c", LEFT], check=True, timeout=60)
