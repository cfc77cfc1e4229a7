"""Input graphs, batches of them, and readers that make them from files."""

from cavs.data import join  # noqa: F401 (registers Graph.join)
from cavs.data.batch import GraphBatch, batch
from cavs.data.features import FeatureSpec
from cavs.data.graph import Graph
from cavs.data.readers.bracket_parser import BracketTree
from cavs.data.readers.brackets import from_brackets, parse_brackets, parse_ptb, read_ptb
from cavs.data.readers.conllu import (
    UPOS,
    dependency_graphs,
    from_conllu,
    parse_conllu,
    read_conllu,
)
from cavs.data.readers.networkx import from_networkx
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
from cavs.data.readers.sst import Tree, parse_tree, read_sst, sst_graphs
from cavs.data.readers.text import chains, read_text
from cavs.data.vocabulary import Vocabulary
from cavs.errors import moved

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
    "Multiword",
    "Sentence",
    "Tree",
    "Vocabulary",
    "batch",
    "chains",
    "dependency_graphs",
    "from_ast",
    "from_brackets",
    "from_conllu",
    "from_networkx",
    "function_classes",
    "function_graphs",
    "load_functions",
    "parse_brackets",
    "parse_conllu",
    "parse_ptb",
    "parse_tree",
    "read_conllu",
    "read_functions",
    "read_ptb",
    "read_sst",
    "read_text",
    "sst_graphs",
]

__getattr__ = moved(
    "cavs.data",
    {
        name: f"cavs.inspect.{name}"
        for name in ("dot_function", "dot_graph", "dot_schedule", "render")
    },
)
