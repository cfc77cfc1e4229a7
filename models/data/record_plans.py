"""Record plans of random queries with their times in a temporary PostgreSQL server.

    python -m models.data.record_plans --out plans.json.gz

A server is created in a temporary folder, and listens on a socket there, on no network port. It
gets six tables of drawn rows and runs drawn queries: filters, index scans, joins, sorts,
aggregates, windows, set operations. EXPLAIN (ANALYZE, FORMAT JSON) tells its operators with the
planner's estimates and the measured times. Each query runs three times, and the run with the least
time at its root is kept. A line of the recording is a plan, with the keys that `KEPT` lists.

The server refuses to run as root: root passes --user NAME, an account that runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

from .plan_queries import Queries, schema

KEPT = ("Node Type", "Strategy", "Startup Cost", "Total Cost", "Plan Rows", "Plan Width")
KEPT += ("Actual Total Time", "Actual Loops", "Plans")


class Server:
    """A temporary server, as a context."""

    def __init__(self, programs: Path, user: str | None) -> None:
        self.programs, self.user, self.folder = programs, user, Path()

    def run(self, program: str, *arguments: str, text: str | None = None) -> str:
        """Return what a program of PostgreSQL prints; an error with its messages if it fails."""
        command = [str(self.programs / program), *arguments]
        # The server keeps what it inherits: its output goes to files, which nothing waits for.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            status = subprocess.run(
                command,
                input=text,
                stdout=out,
                stderr=errors,
                text=True,
                cwd=self.folder,
                user=self.user,
                check=False,
            ).returncode
            for file in (out, errors):
                file.seek(0)
            if status:
                raise SystemExit(f"{program} failed:\n{errors.read()}{out.read()}")
            return out.read()

    def sql(self, text: str, skip_failed: bool = False) -> str:
        """Return what psql prints for statements. skip_failed: leave out those that fail."""
        base = ["-X", "-q", "-A", "-t", "-h", str(self.folder), "-U", "plans", "-d", "postgres"]
        stop = f"ON_ERROR_STOP={'off' if skip_failed else 'on'}"
        return self.run("psql", *base, "-v", stop, text=text)

    def __enter__(self) -> Server:
        self.folder = Path(tempfile.mkdtemp(prefix="plans"))
        data = str(self.folder / "data")
        try:
            if self.user is not None:
                os.chown(self.folder, pwd.getpwnam(self.user).pw_uid, -1)
            self.run("initdb", "-D", data, "-U", "plans", "-A", "trust", "-N", "--no-locale")
            off = ("fsync", "autovacuum", "jit", "synchronous_commit")
            options = [f"-c {name}=off" for name in off]
            options += [f"-c listen_addresses= -c unix_socket_directories={self.folder}"]
            options += ["-c max_parallel_workers_per_gather=0 -c statement_timeout=1s"]
            log = str(self.folder / "log")
            self.run("pg_ctl", "-D", data, "-w", "-l", log, "-o", " ".join(options), "start")
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(SystemExit):  # a server that has ended by itself
            self.run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)


def kept(node: dict) -> dict:
    """Return an operator and those below with the keys of the recording alone."""
    found = {key: node[key] for key in KEPT if key in node}
    if "Plans" in found:
        found["Plans"] = [kept(below) for below in found["Plans"]]
    return found


def plans_of(printed: str) -> list[dict]:
    """Return the fastest run of each query that did not fail."""
    found, decoder = [], json.JSONDecoder()
    for text in printed.split("query\n")[1:]:
        runs, rest = [], text.strip()
        while rest:
            ((plan,), end) = decoder.raw_decode(rest)
            runs.append(plan["Plan"])
            rest = rest[end:].strip()
        if runs:
            found.append(kept(min(runs, key=lambda plan: plan["Actual Total Time"])))
    return found


def record(programs: Path, user: str | None, queries: int, scale: float, seed: int) -> list[dict]:
    """Return the plans of drawn queries, with their times."""
    drawn = Queries(seed)
    with Server(programs, user) as server:
        server.sql("SET statement_timeout = 0;\n" + schema(scale))
        script = "".join(drawn.script() for _ in range(queries))
        found = plans_of(server.sql(script, skip_failed=True))
    if not found:
        raise SystemExit(f"none of {queries} queries gave a plan")
    return found


def programs_of_postgres() -> Path | None:
    """Return the folder of PostgreSQL's programs, of the newest version; None without one."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda path: int(path.parent.name))
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).resolve().parent


def is_account(name: str) -> bool:
    """Return True if this machine has an account of that name."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def main(arguments: list[str] | None = None) -> int:
    """Record plans as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the recording, a .json.gz file")
    add("--programs", type=Path, default=programs_of_postgres(), help="folder of initdb, psql, ...")
    add("--user", help="account that runs the server")
    add("--queries", type=int, default=3000)
    add("--scale", type=float, default=1.0, help="times the rows of the tables")
    add("--seed", type=int, default=0, help="of the queries")
    given = parser.parse_args(arguments)
    if given.programs is None:
        parser.error("there is no PostgreSQL: install it, or pass --programs DIR")
    if given.user is None and os.geteuid() == 0:
        parser.error("PostgreSQL does not run as root: pass --user NAME, such as postgres")
    if given.user is not None and not is_account(given.user):
        parser.error(f"--user {given.user}: there is no such account")
    plans = record(given.programs, given.user, given.queries, given.scale, given.seed)
    lines = "".join(json.dumps(plan, separators=(",", ":")) + "\n" for plan in plans)
    given.out.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    print(f"{len(plans)} plans in {given.out}, {given.out.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
