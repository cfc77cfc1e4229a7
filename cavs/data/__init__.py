"""Input graphs, batches of them, and readers that make them from files."""

from cavs.data.batch import GraphBatch, batch
from cavs.data.brackets import BracketTree, from_brackets, parse_brackets
from cavs.data.builders import AST_TYPES, from_ast, from_networkx
from cavs.data.conllu import (
    UPOS,
    Sentence,
    dependency_graphs,
    from_conllu,
    parse_conllu,
    read_conllu,
)
from cavs.data.draw import dot_function, dot_graph, dot_schedule, render
from cavs.data.features import FeatureSpec
from cavs.data.graph import Graph
from cavs.data.pyast import (
    Function,
    FunctionData,
    function_classes,
    function_graphs,
    load_functions,
    read_functions,
)
from cavs.data.sst import Tree, parse_tree, read_sst, sst_graphs
from cavs.data.text import chains, read_text
from cavs.data.vocabulary import Vocabulary

__all__ = [
    "AST_TYPES",
    "UPOS",
    "BracketTree",
    "FeatureSpec",
    "Function",
    "FunctionData",
    "Graph",
    "GraphBatch",
    "Sentence",
    "Tree",
    "Vocabulary",
    "batch",
    "chains",
    "dependency_graphs",
    "dot_function",
    "dot_graph",
    "dot_schedule",
    "from_ast",
    "from_brackets",
    "from_conllu",
    "from_networkx",
    "function_classes",
    "function_graphs",
    "load_functions",
    "parse_brackets",
    "parse_conllu",
    "parse_tree",
    "read_conllu",
    "read_functions",
    "read_sst",
    "read_text",
    "render",
    "sst_graphs",
]
