"""The ``cavs`` command."""

from typing import TYPE_CHECKING

from cavs.exports import on_first_use

if TYPE_CHECKING:
    from cavs.cli.command import main
    from cavs.cli.registry import Task, data_file, require_data, require_least

__all__ = ["Task", "data_file", "main", "require_data", "require_least"]

__getattr__ = on_first_use(
    globals(),
    {
        "main": "command",
        **dict.fromkeys(("Task", "data_file", "require_data", "require_least"), "registry"),
    },
)
