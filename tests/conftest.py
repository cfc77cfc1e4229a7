"""Settings shared by all tests: engine threads of parallel workers, hypothesis profiles."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

if "PYTEST_XDIST_WORKER" in os.environ:  # one engine thread per worker, before cavs is imported
    os.environ.setdefault("CAVS_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads wait by spinning
import cavs._engine  # noqa: F401  # rebuilds the engine, once, where a source has changed

# Programs that tests start find the tests, and do not look for changed sources again.
HERE = Path(__file__).resolve().parent
search = [str(HERE / "startup"), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, search)))

# These programs start half a second faster with cached bytecode, and tests are collected in half
# the time. Where the environment forbids it in the source tree, cache it in a folder of the tests.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    folder = str(HERE.parent / ".pytest_cache" / "bytecode")
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", folder)
    sys.dont_write_bytecode = False

# MPI would search for fabrics for a second at each start; there are none.
os.environ.setdefault("OMPI_MCA_btl", "^ofi")

# Background jobs of a shell without job control ignore Ctrl-C, and tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Shrinking a failing example can take minutes. The gate only names it; since the gate is
# derandomised, the example fails again under the default profile, which shrinks it.
find = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target)
settings.register_profile("default", deadline=None, phases=(*find, Phase.shrink))
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    phases=find,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "quick", deadline=None, max_examples=40, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# Compiling random cells creates many short-lived objects. A collection of all tests after each
# thousand of them took a sixth of the time of tests/compiler.
gc.set_threshold(20_000, 20, 50)


def pytest_collection_finish(session):
    """Exempt collected tests from garbage collection: they live until the end."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Run slow tests first: at the end they would leave other workers idle."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
