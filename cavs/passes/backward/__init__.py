"""Passes over a differentiated graph that reduce what backward stores for each edge.

A cotangent that a parent scatters to a child has one row per edge, and lives until the task of the
child runs. The values it is computed from often have fewer rows or columns, or are stored anyway.
"""
