"""Input graphs, batches of them, and readers that make them from files."""

from typing import TYPE_CHECKING, Any

from cavs.data.batch import GraphBatch
from cavs.data.collate import batch
from cavs.data.features import FeatureSpec
from cavs.data.graph import Graph
from cavs.data.link import Link
from cavs.data.sample import Sample
from cavs.data.sample_batch import SampleBatch
from cavs.data.vocabulary import Vocabulary
from cavs.errors import moved
from cavs.exports import on_first_use

if TYPE_CHECKING:
    from cavs.data.readers.brackets import (
        from_brackets,
        parse_brackets,
        parse_ptb,
        read_ptb,
        write_ptb,
    )
    from cavs.data.readers.conllu import (
        UPOS,
        dependency_graphs,
        from_conllu,
        parse_conllu,
        parse_conllx,
        read_conllu,
        read_conllx,
        write_conllu,
        write_conllx,
    )
    from cavs.data.readers.json_parser import JsonTree
    from cavs.data.readers.json_trees import (
        from_json,
        parse_json_trees,
        read_json_trees,
        write_json_trees,
    )
    from cavs.data.readers.networkx import from_networkx, to_networkx
    from cavs.data.readers.newick import from_newick, parse_newick, read_newick, write_newick
    from cavs.data.readers.newick_parser import NewickTree
    from cavs.data.readers.parsed_tree import BracketTree
    from cavs.data.readers.python_ast import AST_TYPES, from_ast
    from cavs.data.readers.python_functions import (
        Function,
        FunctionData,
        function_classes,
        function_graphs,
        load_functions,
        read_functions,
    )
    from cavs.data.readers.sentence import EmptyNode, Multiword, Sentence
    from cavs.data.readers.sst import Tree, parse_tree, read_sst, sst_graphs, write_sst
    from cavs.data.readers.tensor_graphs import (
        dgl_graphs,
        from_dgl,
        from_pyg,
        pyg_graphs,
        to_dgl,
        to_pyg,
    )
    from cavs.data.readers.text import chains, parallel_chains, read_text
    from cavs.data.readers.tree_shapes import binarise, collapse_unary, expand_unary, unbinarise
    from cavs.data.readers.treebank import read_treebank
    from cavs.data.readers.vectors import WordVectors, read_vectors, write_vectors

__all__ = [
    "AST_TYPES",
    "UPOS",
    "BracketTree",
    "EmptyNode",
    "FeatureSpec",
    "Function",
    "FunctionData",
    "Graph",
    "GraphBatch",
    "JsonTree",
    "Link",
    "Multiword",
    "NewickTree",
    "Sample",
    "SampleBatch",
    "Sentence",
    "Tree",
    "Vocabulary",
    "WordVectors",
    "batch",
    "binarise",
    "chains",
    "collapse_unary",
    "dependency_graphs",
    "dgl_graphs",
    "expand_unary",
    "from_ast",
    "from_brackets",
    "from_conllu",
    "from_dgl",
    "from_json",
    "from_networkx",
    "from_newick",
    "from_pyg",
    "function_classes",
    "function_graphs",
    "load_functions",
    "parallel_chains",
    "parse_brackets",
    "parse_conllu",
    "parse_conllx",
    "parse_json_trees",
    "parse_newick",
    "parse_ptb",
    "parse_tree",
    "pyg_graphs",
    "read_conllu",
    "read_conllx",
    "read_functions",
    "read_json_trees",
    "read_newick",
    "read_ptb",
    "read_sst",
    "read_text",
    "read_treebank",
    "read_vectors",
    "sst_graphs",
    "to_dgl",
    "to_networkx",
    "to_pyg",
    "unbinarise",
    "write_conllu",
    "write_conllx",
    "write_json_trees",
    "write_newick",
    "write_ptb",
    "write_sst",
    "write_vectors",
]

_READERS = {
    **dict.fromkeys(
        ("from_brackets", "parse_brackets", "parse_ptb", "read_ptb", "write_ptb"),
        "readers.brackets",
    ),
    **dict.fromkeys(
        (
            "UPOS",
            "dependency_graphs",
            "from_conllu",
            "parse_conllu",
            "parse_conllx",
            "read_conllu",
            "read_conllx",
            "write_conllu",
            "write_conllx",
        ),
        "readers.conllu",
    ),
    "JsonTree": "readers.json_parser",
    **dict.fromkeys(
        ("from_json", "parse_json_trees", "read_json_trees", "write_json_trees"),
        "readers.json_trees",
    ),
    **dict.fromkeys(("from_networkx", "to_networkx"), "readers.networkx"),
    **dict.fromkeys(
        ("dgl_graphs", "from_dgl", "from_pyg", "pyg_graphs", "to_dgl", "to_pyg"),
        "readers.tensor_graphs",
    ),
    **dict.fromkeys(
        ("from_newick", "parse_newick", "read_newick", "write_newick"), "readers.newick"
    ),
    "NewickTree": "readers.newick_parser",
    "BracketTree": "readers.parsed_tree",
    **dict.fromkeys(("AST_TYPES", "from_ast"), "readers.python_ast"),
    **dict.fromkeys(
        (
            "Function",
            "FunctionData",
            "function_classes",
            "function_graphs",
            "load_functions",
            "read_functions",
        ),
        "readers.python_functions",
    ),
    **dict.fromkeys(("EmptyNode", "Multiword", "Sentence"), "readers.sentence"),
    **dict.fromkeys(("Tree", "parse_tree", "read_sst", "sst_graphs", "write_sst"), "readers.sst"),
    **dict.fromkeys(("chains", "parallel_chains", "read_text"), "readers.text"),
    **dict.fromkeys(
        ("binarise", "collapse_unary", "expand_unary", "unbinarise"), "readers.tree_shapes"
    ),
    "read_treebank": "readers.treebank",
    **dict.fromkeys(("WordVectors", "read_vectors", "write_vectors"), "readers.vectors"),
}
_reader = on_first_use(globals(), _READERS)
_moved = moved(
    "cavs.data",
    {
        name: f"cavs.inspect.{name}"
        for name in ("dot_function", "dot_graph", "dot_schedule", "render")
    },
)


def __getattr__(name: str) -> Any:
    return _reader(name) if name in _READERS else _moved(name)
