"""Truth values of all parts of logical expressions, by a Tree-LSTM (Tai et al. 2015)."""

import random
from itertools import chain

import torch


class TreeLSTM(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.cut, self.zero = 3 * size, torch.zeros(size)
        self.W = torch.nn.Parameter(torch.empty(size, 3 * size))
        self.U = torch.nn.Parameter(torch.empty(2 * size, 5 * size))
        self.b, self.b_f = (torch.nn.Parameter(torch.empty(n * size)) for n in (3, 2))

    def forward(self, trees, x):
        parts = (x @ self.W + self.b).split([len(tree) for tree in trees])
        rows = [[None] * len(tree) for tree in trees]
        for tree, part, h in zip(trees, parts, rows, strict=True):
            self.visit(tree, part, h, len(tree) - 1)
        return torch.stack(list(chain(*rows)))

    def visit(self, tree, x, rows, v):
        states = [self.visit(tree, x, rows, child) for child in tree[v]]
        (c_left, left), (c_right, right) = states or [(self.zero, self.zero)] * 2
        below = torch.cat([left, right]) @ self.U
        i, o, u = torch.chunk(x[v] + below[: self.cut], 3)
        f_left, f_right = torch.sigmoid(below[self.cut :] + self.b_f).chunk(2)
        c = torch.sigmoid(i) * torch.tanh(u) + f_left * c_left + f_right * c_right
        rows[v] = torch.sigmoid(o) * torch.tanh(c)
        return c, rows[v]


class Classifier(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding = torch.nn.Embedding(4, size)
        self.tree = TreeLSTM(size)
        self.output = torch.nn.Linear(size, 2)
        for p in self.parameters():
            torch.nn.init.uniform_(p, -0.3, 0.3)

    def forward(self, trees, token):
        return self.output(self.tree(trees, x=self.embedding(token)))


def draw(rng, leaves):
    """The children of each vertex, its token (false, true, and, or) and its truth value."""
    children, token = [[] for _ in range(leaves)], [rng.randrange(2) for _ in range(leaves)]
    free, truth = list(range(leaves)), token[:]
    while len(free) > 1:
        at = rng.randrange(len(free) - 1)
        children.append(free[at : at + 2])
        free[at : at + 2] = [len(token)]
        token.append(rng.randrange(2, 4))
        truth.append((min, max)[token[-1] - 2](truth[child] for child in children[-1]))
    return children, token, truth


def collate(samples):
    trees, *rows = zip(*samples, strict=True)
    return trees, *(torch.tensor(list(chain(*row))) for row in rows)


if __name__ == "__main__":
    rng = random.Random(0)
    torch.manual_seed(0)
    model = Classifier(size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    data = [draw(rng, rng.randint(1, 10)) for _ in range(48)]
    for trees, token, truth in torch.utils.data.DataLoader(data, 8, collate_fn=collate):
        loss = torch.nn.functional.cross_entropy(model(trees, token), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f}")
