"""Vertex functions, models and parameters, which users define."""

from cavs.frontend.batch import Schema, SymbolicBatch
from cavs.frontend.model import Model
from cavs.frontend.parameter import Module, Parameter
from cavs.frontend.vertex import State, VertexFunction

__all__ = ["Model", "Module", "Parameter", "Schema", "State", "SymbolicBatch", "VertexFunction"]
