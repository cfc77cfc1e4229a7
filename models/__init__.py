"""Example models; each module builds one for the command line and can be read on its own.

Modules whose names begin with an underscore draw and read the data of one model.
"""
