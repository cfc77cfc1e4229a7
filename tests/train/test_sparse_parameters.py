"""An optimiser updates the rows of a sparse parameter that were looked up."""

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads

OPTIMIZERS = [
    cavs.optim.SGD(lr=0.1, weight_decay=0.1),
    cavs.optim.SGD(lr=0.1, momentum=0.9, nesterov=True),
    cavs.optim.Adagrad(lr=0.1, weight_decay=0.01),
    cavs.optim.Adam(lr=0.05),
    cavs.optim.AdamW(lr=0.05),
    cavs.optim.Adadelta(lr=1.0, weight_decay=0.01),
]
ROWS = [[0, 1], [1, 1, -1], [3], [-1], [0, 3]]  # lookups of each batch; none of row 2


class Table(cavs.Model):
    """A table whose rows are read by lookups or by a product."""

    def __init__(self, how):
        self.how = how
        self.table = cavs.Parameter((4, 3), sparse=how == "sparse")
        self.cell = nn.ChildSumTreeLSTM(3, 2)

    def loss(self, batch):
        if self.how == "product":
            x = batch["one hot"] @ self.table
        else:
            x = ops.lookup(self.table, batch["row"])
        return ops.mean_squared_error(self.cell(batch.graph, x=x), 0.5)


def batches():
    for rows in ROWS:
        hot = np.eye(5, 4)[rows]  # -1 selects the last of five rows, which is none of the four
        chain = [[v - 1] if v else [] for v in range(len(rows))]
        yield cavs.batch([cavs.Graph(chain, {"row": rows, "one hot": hot})])


def trained(how, optimizer):
    model = Table(how)
    model.initialize(2, np.float64)
    session = cavs.Session(model, dtype=np.float64)
    trainer = cavs.Trainer(model, optimizer, session=session, max_norm=0.5)
    found = [model.table.value.copy()]
    for batch in batches():
        trainer.advance(batch)
        found.append(model.table.value.copy())
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_all_rows_of_a_dense_table_decay_and_have_momentum(optimizer):
    for looked_up, product in zip(
        trained("dense", optimizer), trained("product", optimizer), strict=True
    ):
        np.testing.assert_allclose(looked_up, product, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_rows_of_a_sparse_table_without_lookups_stay(optimizer):
    values = trained("sparse", optimizer)
    for rows, before, after in zip(ROWS, values, values[1:], strict=False):
        touched = sorted({r for r in rows if r >= 0})
        others = np.setdiff1d(range(4), touched)
        assert np.array_equal(before[others], after[others])
        assert (before[touched] != after[touched]).all()


@pytest.mark.parametrize("strategy", [None, "PartitionedPS", "Parallax"])
@pytest.mark.parametrize("how", ["dense", "sparse"])
def test_ranks_update_the_same_rows(how, strategy):
    optimizer = cavs.optim.AdamW(lr=0.05)
    alone = trained(how, optimizer)[-1]

    def work(c):
        model = Table(how)
        model.initialize(2, np.float64)
        trainer = Trainer(
            model, optimizer, communicator=c, dtype=np.float64, max_norm=0.5, strategy=strategy
        )
        for batch in batches():
            trainer.advance(batch)
        trainer.settle()
        return model.table.current().copy()

    for table in run_threads(2, work):
        np.testing.assert_allclose(table, alone, rtol=1e-11, atol=1e-13)


def test_an_embedding_is_sparse_by_default():
    assert nn.Embedding(4, 3).weight.sparse
    assert not nn.Embedding(4, 3, sparse=False).weight.sparse
