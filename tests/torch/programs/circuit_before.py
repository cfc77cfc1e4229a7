"""Signals of all gates of circuits, by a gated recurrent network over their DAGs."""

import random
from itertools import chain
from types import SimpleNamespace

import torch
from torch import sigmoid, tanh


def weight(*shape):
    return torch.nn.Parameter(torch.empty(shape))


class GatedDAG(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.W, self.U = weight(size, size), weight(size, size)
        self.W_z, self.U_z = weight(size, size), weight(size, size)

    def vertex(self, v):
        x, below = v.x, sum((u.h for u in v.inputs), torch.zeros_like(v.x))
        z = sigmoid(x @ self.W_z + below @ self.U_z)
        h = z * below + (1.0 - z) * tanh(x @ self.W + below @ self.U)
        v.h = h

    def forward(self, circuits, x):
        rows, gates = iter(x), []
        for circuit in circuits:
            first = len(gates)
            for inputs in circuit:  # in topological order
                below = [gates[first + i] for i in inputs]
                gates.append(SimpleNamespace(x=next(rows), inputs=below))
                self.vertex(gates[-1])
        return torch.stack([v.h for v in gates])


class Classifier(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding = torch.nn.Embedding(4, size)
        self.dag = GatedDAG(size)
        self.output = torch.nn.Linear(size, 2)
        for p in self.parameters():
            torch.nn.init.uniform_(p, -0.3, 0.3)

    def forward(self, circuits, kind):
        return self.output(self.dag(circuits, x=self.embedding(kind)))


def draw(rng, gates):
    """The inputs of each gate, its kind (0 and 1: a signal, 2: not, 3: and) and its signal."""
    inputs, kind = [[] for _ in range(8)], [rng.randrange(2) for _ in range(8)]
    signal = kind[:]
    for v in range(8, 8 + gates):
        kind.append(rng.randrange(2, 4))
        inputs.append(rng.sample(range(v - 8, v), kind[-1] - 1))
        below = [signal[i] for i in inputs[-1]]
        signal.append(min(below) if kind[-1] == 3 else 1 - below[0])
    return inputs, kind, signal


def collate(samples):
    circuits, *rows = zip(*samples, strict=True)
    return circuits, *(torch.tensor(list(chain(*row))) for row in rows)


if __name__ == "__main__":
    rng = random.Random(0)
    torch.manual_seed(0)
    model = Classifier(size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    data = [draw(rng, rng.randint(1, 20)) for _ in range(48)]
    for circuits, kind, signal in torch.utils.data.DataLoader(data, 8, collate_fn=collate):
        loss = torch.nn.functional.cross_entropy(model(circuits, kind), signal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f}")
