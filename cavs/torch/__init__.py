"""Vertex functions and models of cavs as modules of PyTorch, on the CPU.

``Module`` has torch Parameters on the memory of the model's own and takes part in autograd,
``collate`` makes batches for the DataLoader of torch; see docs/torch.md. Importing it needs the
package torch, which ``import cavs`` never imports.
"""

from cavs.errors import ConfigError

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ConfigError(
        "cavs.torch needs the Python package torch", hint='pip install "cavs[torch]"'
    ) from error

from cavs.torch.collate import collate
from cavs.torch.module import Module
from cavs.torch.threads import share_threads

share_threads()

__all__ = ["Module", "collate"]
