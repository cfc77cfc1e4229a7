"""The program of one rank: ``python tests/distributed/rank.py MODULE FUNCTION ARGUMENTS``."""

import gc
import importlib
import json
import sys
from types import ModuleType


class Mark:
    """A mark, or a decorator of pytest, which leaves the function or class as it is."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments, **options):
        decorates = len(arguments) == 1 and not options and callable(arguments[0])
        return arguments[0] if decorates else self


class LightPytest(ModuleType):
    """A stand-in for pytest, which takes a fifth of a second to import.

    Test modules need marks, fixtures and parameters when they are imported, and a rank runs none
    of them as tests. The first use of any other name imports pytest.
    """

    mark = fixture = param = Mark()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules["pytest"] is self:
            del sys.modules["pytest"]
        return getattr(importlib.import_module("pytest"), name)


def main():
    from cavs.distributed.comm import MPICommunicator
    from tests.patience import patience

    module, name, text = sys.argv[1:]
    communicator = MPICommunicator(timeout=patience(30))
    function = getattr(importlib.import_module(module), name)
    gc.freeze()  # no object of a module becomes garbage
    gc.enable()
    result = function(communicator, *json.loads(text))
    if communicator.rank == 0:
        print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    gc.disable()
    sys.modules["pytest"] = LightPytest("pytest")
    main()
