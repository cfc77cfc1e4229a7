"""Directions of dots in clips, by a CNN before an LSTM over the frames (LRCN, Donahue 2015)."""

import random

import torch

import cavs.torch


class Classifier(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        first, second = torch.nn.Conv2d(1, 8, 3, 2), torch.nn.Conv2d(8, 16, 3, 2)
        relu, flat = torch.nn.ReLU(), torch.nn.Flatten()
        self.cnn = torch.nn.Sequential(first, relu, second, relu, flat)  # rows of 400
        self.lstm = cavs.torch.Module(cavs.nn.LSTM(400, size))
        self.output = torch.nn.Linear(size, 4)
        for p in self.parameters():
            torch.nn.init.uniform_(p, -0.2, 0.2)

    def forward(self, clips):
        chains = cavs.batch(cavs.Graph.chain(len(clip)) for clip in clips)
        h = self.lstm(chains, x=self.cnn(torch.cat(clips)))
        return self.output(h)


def draw(rng, frames):
    """Frames of a dot that moves up, down, left or right, and the direction."""
    clip, direction = torch.zeros(frames, 1, 24, 24), rng.randrange(4)
    y, x = rng.randrange(24), rng.randrange(24)
    for frame in clip:
        frame[0, y % 24, x % 24] = 1.0
        y, x = y + (-1, 1, 0, 0)[direction], x + (0, 0, -1, 1)[direction]
    return clip, direction


def collate(samples):
    clips, directions = zip(*samples, strict=True)
    lengths = torch.tensor([len(clip) for clip in clips])
    return clips, torch.tensor(directions).repeat_interleave(lengths)


if __name__ == "__main__":
    rng = random.Random(0)
    torch.manual_seed(0)
    model = Classifier(size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    data = [draw(rng, rng.randint(2, 12)) for _ in range(48)]
    for clips, direction in torch.utils.data.DataLoader(data, 8, collate_fn=collate):
        loss = torch.nn.functional.cross_entropy(model(clips), direction)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f}")
