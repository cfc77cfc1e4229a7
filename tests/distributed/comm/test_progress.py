"""Jobs that run in the wait for one of them."""

import threading

import pytest

from cavs.distributed.comm.progress import Progress
from tests.patience import patience


def test_a_job_that_another_thread_runs_is_waited_for():
    progress, runs, ends = Progress(), threading.Event(), threading.Event()

    def work():
        runs.set()
        assert ends.wait(patience(20))
        return 7

    job = progress.start(work, (), threaded=False)
    first = threading.Thread(target=job.wait)
    first.start()
    assert runs.wait(patience(20))
    assert not job.done and not progress.is_free
    assert job.run_next() is False  # no other is left
    threading.Timer(0.01, ends.set).start()
    assert job.wait() == 7
    first.join()
    assert progress.is_free


def test_a_wait_runs_the_jobs_before():
    progress, ran = Progress(), []

    def fail():
        ran.append("fail")
        raise ZeroDivisionError("of a job")

    first = progress.start(fail, (), threaded=False)
    last = progress.start(ran.append, ("last",), threaded=False)
    last.wait()
    assert ran == ["fail", "last"] and first.done
    with pytest.raises(ZeroDivisionError, match="of a job"):
        first.wait()
