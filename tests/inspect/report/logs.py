"""Logs of made-up trainings."""

import json
from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Log:
    """Writes one record per second to a file."""

    def __init__(self, path, seconds=0.0):
        self.path, self.now = path, NOON + timedelta(seconds=seconds)

    def write(self, event, **record):
        record = {"event": event, "time": self.now.isoformat(timespec="milliseconds"), **record}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.now += timedelta(seconds=1)
        return self

    def start(self, step=0, *, ranks=1, batch_size=8, monitor="accuracy", epochs=3):
        loader = {"batch_size": batch_size}
        more = {"ranks": ranks, "loader": loader, "monitor": monitor, "epochs": epochs}
        return self.write("start", epoch=0, step=step, optimizer="SGD(lr=0.1)", **more)

    def step(self, step, loss, **more):
        facts = {"grad_norm": 1.0, "batch_size": 8, "ranks": 1, "seconds": 0.5}
        return self.write("step", epoch=1, step=step, loss=loss, **facts | more)

    def epoch(self, epoch, step, loss, *, best=True, **more):
        facts = {"lr": 0.1, "train_loss": loss, "seconds": 1.0, "graphs_per_second": 50.0}
        return self.write("epoch", epoch=epoch, step=step, **facts | more, best=best)


def without_policies(path):
    """Write the log of a finished run of three epochs."""
    log = Log(path).write("options", model="toy").start()
    for epoch, accuracy in ((1, 0.5), (2, 0.75), (3, 0.625)):
        dev = {"dev_loss": 1 / epoch, "dev_accuracy": accuracy, "dev_seconds": 0.1}
        log.epoch(epoch, 10 * epoch, 2 / epoch, best=epoch < 3, **dev)
        log.write("checkpoint", epoch=epoch, step=10 * epoch)
    log.write("end", step=30, status="finished", stopped_early=False)
    return path


def adaptive(path):
    """Write the log of a run with a policy and monitors, interrupted and resumed on more ranks."""
    log = Log(path).start()
    for step in range(1, 7):
        log.step(step, 3 / step, noise_scale=4.0 * step, throughput=16.0)
        if step == 3:
            log.write("change", step=step, setting="batch_size", value=16)
    log.write("checkpoint", epoch=0, step=6).write("interrupt", epoch=0, step=6)
    later = Log(path, seconds=7200).start(6, ranks=4, batch_size=16)
    for step in range(7, 11):
        later.step(step, 3 / step, noise_scale=4.0 * step, throughput=64.0, ranks=4, batch_size=16)
    later.epoch(1, 10, 1.0, dev_accuracy=0.5)
    return path
