"""A training step on many ranks.

``docs/distributed.md`` ("A step, in order") lists the messages of a synchronous step and the errors
that they may raise, ``docs/architecture/paths.md`` its functions. A rank that has failed takes part
in every exchange until the next consensus, so that no other rank waits for it. After the consensus
"end of step" nothing fails on one rank alone: all ranks update, or none.
"""
