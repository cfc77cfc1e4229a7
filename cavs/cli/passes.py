"""``--without PASS``: passes of the compiler that a command switches off."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from cavs.compiler.options import RENAMED, Passes, default_passes


def add_argument(parser: Any) -> None:
    """Add ``--without``."""
    parser.add_argument(
        "--without",
        action=OptionValues,
        default=[],
        type=_pass_name,
        choices=[switch.name for switch in fields(Passes)],
        metavar="PASS",
        help="switch off a pass of the compiler, such as merge_vertices; once for each "
        "(default: all are on)",
    )


def passes(args: argparse.Namespace) -> Passes | None:
    """Return the passes that ``--device`` and ``--without`` ask for; None for the default."""
    if not args.without:
        return None
    return replace(default_passes(args.device), **dict.fromkeys(args.without, False))


def _pass_name(name: str) -> str:
    if name in RENAMED:
        raise argparse.ArgumentTypeError(f"{name} was renamed: write {RENAMED[name]}")
    return name


class OptionValues(argparse.Action):
    """Collect values in a list, in place of a default that a resumed run has set."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Append `values` to the list of this command line."""
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*([] if before is self.default else before), values])
