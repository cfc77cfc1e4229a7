"""Settings shared by all tests: engine threads of parallel workers, hypothesis profiles."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

if "PYTEST_XDIST_WORKER" in os.environ:  # one engine thread a worker; set before cavs is imported
    os.environ.setdefault("CAVS_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's, which wait by spinning
import cavs._engine  # noqa: F401  # built anew here, once, where a source has changed

# Programs that tests start find the tests, and do not look for changed sources again.
HERE = Path(__file__).resolve().parent
search = [str(HERE / "startup"), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, search)))

# They begin half a second earlier where the bytecode of the package is kept, which some forbid in
# the source tree: then in a folder of the tests.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(HERE.parent / ".pytest_cache" / "bytecode"))

# MPI looks for fabrics for a second whenever it starts; here are none.
os.environ.setdefault("OMPI_MCA_btl", "^ofi")

# Background jobs of a shell without job control ignore Ctrl-C, and so would what is tested here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Explaining a failure can take minutes. The gate only says which example fails; being derandomised,
# it fails again under the default profile, which shrinks it.
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


# Compiling random cells makes many objects, most of which end at once. Looking through all tests
# for garbage whenever a thousand have come took a sixth of the time of tests/compiler.
gc.set_threshold(20_000, 20, 50)


def pytest_collection_finish(session):
    """Tests stay until the end."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Slow tests first: at the end other workers would have nothing left to do beside them."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
