"""Signals of all gates of circuits, by a gated recurrent network over their DAGs."""

import random
from itertools import chain

import torch

import cavs.torch
from cavs.ops import sigmoid, tanh


def weight(*shape):
    return cavs.Parameter(shape)


class GatedDAG(cavs.VertexFunction):
    def __init__(self, size):
        self.state = cavs.State(h=size)
        self.W, self.U = weight(size, size), weight(size, size)
        self.W_z, self.U_z = weight(size, size), weight(size, size)

    def vertex(self, v):
        x, below = v.pull("x"), v.gather().h.sum()
        z = sigmoid(x @ self.W_z + below @ self.U_z)
        h = z * below + (1.0 - z) * tanh(x @ self.W + below @ self.U)
        v.scatter(h=h)
        v.push(h)


class Classifier(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding = torch.nn.Embedding(4, size)
        self.dag = cavs.torch.Module(GatedDAG(size))
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
    return cavs.batch(map(cavs.Graph, circuits)), *(torch.tensor(list(chain(*row))) for row in rows)


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
