"""The network over jets equals one in NumPy vertex by vertex, and clustering its definition."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cavs
from cavs.cli import main
from cavs.errors import DataError
from models._recombination import recombine, relative
from models.jets import JetClassifier, draw_particles, jet_graph, jets, read_jets
from tests.models.against_numpy import check, cross_entropy, epoch_losses

RNG = np.random.default_rng(0)
PARTICLES = [draw_particles(RNG, 1 + n % 2, 9)[: 1 + 3 * n] for n in range(3)]  # one is alone
LABELS = [0, 1, 0]


def relu(x):
    return np.maximum(x, 0)


def state(p, graph, v):
    """Return the state of a vertex, from the leaves: Louppe et al. 2017, equations 8 to 10."""
    row = graph.features["momentum"][v].astype(float)
    own = relu(row @ p["tree.embedding.weight"] + p["tree.embedding.bias"])
    if len(graph.children(v)) == 0:
        return own
    first, second = (state(p, graph, int(child)) for child in graph.children(v))
    parts = np.concatenate([first, second, own])
    return relu(parts @ p["tree.joined.weight"] + p["tree.joined.bias"])


def test_loss_scores_and_gradients_equal_the_reference():
    graphs = [jet_graph(x, 1 + label) for x, label in zip(PARTICLES, LABELS, strict=True)]
    assert graphs[0].num_vertices == 1 < len({g.depth for g in graphs})

    def reference(p):
        roots = [state(p, g, g.num_vertices - 1) for g in graphs]
        hidden = [relu(h @ p["hidden.weight"] + p["hidden.bias"]) for h in roots]
        scores = [h @ p["output.weight"] + p["output.bias"] for h in hidden]
        losses = [cross_entropy(row, label) for row, label in zip(scores, LABELS, strict=True)]
        return np.mean(losses), np.array(scores)

    check(JetClassifier(4), cavs.batch(graphs), reference)


def direction(momentum):
    """Return transverse momentum, rapidity and angle of an energy and a momentum."""
    energy, px, py, pz = momentum
    return np.hypot(px, py), np.arctanh(pz / energy), np.arctan2(py, px)


def test_the_nearest_pair_is_joined_first():
    particles = draw_particles(np.random.default_rng(1), 2, 12)
    children, momenta = recombine(particles)
    remaining = list(range(len(particles)))
    for v in remaining:
        assert children[v] == []
        assert direction(momenta[v]) == pytest.approx(tuple(particles[v]))
    for v in range(len(particles), len(children)):
        distances = {}
        for i in remaining:
            for j in remaining:
                (p, y, phi), (q, z, psi) = direction(momenta[i]), direction(momenta[j])
                turn = abs(np.angle(np.exp(1j * (phi - psi))))
                if i < j:
                    distances[i, j] = min(p, q) ** 2 * ((y - z) ** 2 + turn**2)
        nearest = min(distances, key=distances.__getitem__)
        assert tuple(sorted(children[v])) == nearest
        harder, softer = children[v]
        assert direction(momenta[harder])[0] >= direction(momenta[softer])[0]
        np.testing.assert_allclose(momenta[v], momenta[harder] + momenta[softer])
        remaining = [i for i in remaining if i not in nearest] + [v]
    assert remaining == [len(children) - 1]


def test_features_are_those_relative_to_the_jet():
    # Two particles back to back in the angle around pi, so that differences of angles wrap.
    children, momenta = recombine(np.array([[2.0, 0.5, 3.0], [1.0, 0.1, -3.0]]))
    rows = relative(momenta)
    mass = np.sqrt(momenta[2, 0] ** 2 - (momenta[2, 1:] ** 2).sum())
    assert children == [[], [], [0, 1]]
    np.testing.assert_allclose(rows[2], [0, np.log1p(mass) / 4, 0, 0], atol=1e-12)
    assert abs(rows[:2, 3]).max() < 0.3 and rows[0, 3] < 0 < rows[1, 3]
    np.testing.assert_allclose(rows[:2, 1], 0, atol=1e-6)


def test_jets_are_drawn_from_a_seed():
    first, again, other = (jets(6, 8, seed) for seed in (0, 0, 1))
    momenta = [[g.features["momentum"].tobytes() for g in part] for part in (first, again, other)]
    assert momenta[0] == momenta[1] != momenta[2]
    assert [int(g.graph_features["label"]) for g in first] == [0, 1] * 3
    assert jets(1, 1, 0)[0].num_vertices == 1


def test_the_loss_of_a_training_falls(tmp_path, capsys):
    options = ["--hidden-size=16", "--jets=96", "--particles=8", "--batch-size=8", "--lr=0.01"]
    given = [*options, "--epochs=12", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["train", "jets", *given]) == 0
    losses = epoch_losses(tmp_path / "run")
    assert losses[-1] < 0.8 * losses[0]
    (tmp_path / "new").write_text("100 0.1 0.2\n50 -0.2 0.1\n\n80 0 0\n")
    capsys.readouterr()
    checkpoint = str(tmp_path / "run" / "checkpoint.best.safetensors")
    assert main(["predict", checkpoint, str(tmp_path / "new")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and set(lines) <= {"one prong", "two prongs"}


@pytest.mark.parametrize(
    "line", ["1 2", "1 2 x", "0 1 2", "1 nan 2", "1 2 inf", "1 19 0", "1e155 0 0"]
)
def test_a_particle_that_is_none_is_refused(line):
    with pytest.raises(DataError, match=re.escape(f"<text>:2: '{line}' is no particle")):
        read_jets(f"1 2 3\n{line}\n")


def test_particles_at_the_bounds_form_a_tree():
    lines = ["1e-8 10 0", "1e8 -10 1", "2e-8 10 2", "1e8 0 3"]
    (graph,) = read_jets("\n".join(lines))
    assert graph.num_vertices == 7 and graph.roots.tolist() == [6]
    assert np.isfinite(graph.features["momentum"]).all()


def test_a_jet_without_finite_distances_is_refused():
    steep, still = np.array([[1.0, 25.0, 0.0]] * 2), np.array([[2.0, 1, 0, 0], [2, 0, 0, 0]])
    with pytest.raises(DataError, match="jet 3: a distance of two parts is not finite"):
        recombine(steep, "jet 3")
    with pytest.raises(DataError, match="jet: a feature of a momentum is not finite"):
        relative(still)


@pytest.mark.parametrize("given", ["--jets=0", "--particles=0"])
def test_bad_options_are_refused(given, capsys):
    assert main(["train", "jets", given]) == 1
    assert f"ConfigError: {given.replace('=', ' ')}" in capsys.readouterr().err
