"""A training step of the programs of docs/torch_dynamic.md, before and after their change.

Both versions of a program begin from equal parameters and train on the same batch, which every step
collates again. "packed" is the program "clip" with the LSTM of torch on packed sequences. Needs the
package torch.
"""

from __future__ import annotations

import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.options import THREADS, OptionParser, at_least
from benchmarks.ratios import Pass, quartiles, take_turns, timed

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "torch" / "programs"
# Number of samples of a batch, and the least and the greatest size of one: leaves, gates, frames.
SIZES = {"tree": (64, 1, 40), "circuit": (32, 20, 120), "clip": (32, 5, 60)}
TOLERANCE = 1e-4  # relative, between losses of the first step


def step_of(model: Any, collate: Callable[[Any], Any], samples: list[Any]) -> Callable[[], float]:
    """Return a training step of ``model`` on a batch of all samples."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> float:
        *inputs, labels = collate(samples)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(*inputs), labels)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def packed(model: Any) -> Any:
    """Return the program "clip" with the LSTM of torch on packed sequences, of equal parameters."""
    import torch
    from torch.nn.utils.rnn import pack_sequence, unpack_sequence

    own = model.lstm
    lstm = torch.nn.LSTM(*own.W.shape[:1], own.U.shape[0])
    targets = (lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0)
    with torch.no_grad():
        for target, values in zip(targets, (own.W, own.U, own.b), strict=True):
            i, f, o, u = values.chunk(4, -1)  # torch has them in the order i, f, u, o
            target.copy_(torch.cat([i, f, u, o], -1).t())
        lstm.bias_hh_l0.zero_()

    class Packed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cnn, self.lstm, self.output = model.cnn, lstm, model.output

        def forward(self, clips: Any) -> Any:
            rows = self.cnn(torch.cat(clips)).split([len(clip) for clip in clips])
            h, _ = self.lstm(pack_sequence(rows, enforce_sorted=False))
            return self.output(torch.cat(unpack_sequence(h)))

    return Packed()


def runners(name: str, hidden: int, threads: int) -> dict[str, Pass]:
    """Return timed steps of a program by version, the changed one first."""
    import torch

    import cavs

    torch.set_num_threads(threads)
    cavs.set_num_threads(threads)
    count, least, most = SIZES[name]
    found = {}
    for version in ("after", "before", *(["packed"] if name == "clip" else [])):
        file = "before" if version == "packed" else version
        names = runpy.run_path(str(FOLDER / f"{name}_{file}.py"))
        torch.manual_seed(0)
        model = names["Classifier"](hidden)
        rng = random.Random(0)
        samples = [names["draw"](rng, rng.randint(least, most)) for _ in range(count)]
        if version == "packed":
            model = packed(model)
        found[version] = timed(step_of(model, names["collate"], samples))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = OptionParser("benchmarks.torch_programs", __doc__ or "")
    parser.add_argument("--programs", nargs="+", choices=SIZES, default=list(SIZES), help="names")
    parser.add_argument("--hidden", type=at_least(1), default=128, help="state size")
    parser.add_argument("--threads", type=THREADS, default=1, help="threads of both")
    parser.add_argument("--rounds", type=at_least(1), default=9, help="steps of each")
    options = parser.parse_args(arguments)
    for name in options.programs:
        versions = runners(name, options.hidden, options.threads)
        found = take_turns(versions, options.rounds, TOLERANCE)
        for version, seconds in found["seconds"].items():
            time = quartiles(seconds, "{:.1f} ms", lambda s: 1e3 * s)
            ratio = quartiles(found["ratios"][version], "{:.2f}")
            print(f"{name:8} {version:7} {time}, {ratio} of after", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
