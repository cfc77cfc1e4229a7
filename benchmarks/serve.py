"""The process of one runner, which a session starts and asks; not for use by hand."""

from __future__ import annotations

import argparse
from multiprocessing.connection import Connection

from benchmarks.sessions import serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    parser.add_argument("name", help="the runner")
    parser.add_argument("handle", type=int, help="the socket that the session talks through")
    given = parser.parse_args()
    serve(given.name, Connection(given.handle))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
