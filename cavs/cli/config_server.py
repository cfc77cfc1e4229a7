"""``cavs config-server``."""

from __future__ import annotations

import argparse
import ipaddress
import secrets
import signal
import sys
from contextlib import suppress
from typing import Any

from cavs.cli.numbers import count
from cavs.train.configuration import FileStore, MemoryStore
from cavs.train.configuration.names import TOKEN
from cavs.train.configuration.store import read_token


def add_parser(commands: Any, argv: list[str]) -> None:
    """Add the command."""
    text = "serve the wanted number of ranks to trainings with the policy FollowStore"
    parser = commands.add_parser("config-server", help=text, description=text)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: %(default)s); to others the token travels unencrypted",
    )
    parser.add_argument(
        "--port",
        type=count(0, 65535),
        default=0,
        metavar="N",
        help="port to listen on (default: a free one, which is printed)",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the word that clients must send (default: a random one, which is printed)",
    )
    parser.add_argument(
        "--store", metavar="FILE", help="keep the configuration in FILE (default: in memory)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    from cavs.train.configuration.server import ConfigurationServer  # slow to import

    store = MemoryStore() if args.store is None else FileStore(args.store)
    store.read()  # a broken file is an error here, not one of every client
    token = read_token(args.token_file) if args.token_file else secrets.token_urlsafe(24)
    server = ConfigurationServer(store, token, args.host, args.port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"configuration store at {server.url}", flush=True)
    if not args.token_file:
        print(f"export {TOKEN}={token}", flush=True)
    if not _is_loopback(args.host):
        print(
            f"cavs: {args.host} is reachable from other machines, and the token travels "
            "unencrypted: use a trusted network, or a proxy with TLS",
            file=sys.stderr,
            flush=True,
        )
    with suppress(KeyboardInterrupt):
        server.serve()
    return 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
