"""Mean cross entropy and its gradient, for the programs that write their backward by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy_backward(logits: Tensor, label: Tensor, labelled: int) -> tuple[Tensor, Tensor]:
    """Return loss and its gradient [rows, classes]; rows with a negative label do not count."""
    log_p = torch.log_softmax(logits, 1)
    loss = F.nll_loss(log_p, label, ignore_index=-1)
    gradient = log_p.exp_()
    rows = len(label)
    gradient.scatter_add_(1, label.clamp(min=0).unsqueeze(1), log_p.new_full((rows, 1), -1.0))
    if labelled == rows:
        gradient.div_(labelled)
    else:
        gradient.mul_(((label >= 0).float() / labelled).unsqueeze(1))
    return loss, gradient
