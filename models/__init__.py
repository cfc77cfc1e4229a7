"""Example models; each module builds one for the command line and can be read on its own."""
