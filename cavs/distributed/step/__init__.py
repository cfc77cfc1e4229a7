"""A training step on many ranks.

The protocol of a synchronous step, in the order of its messages. Replicas compute; servers are the
ranks that only own parameters. A row in brackets is left out where it has nothing to do.

| message                        | from             | to               | may raise there           |
| ------------------------------ | ---------------- | ---------------- | ------------------------- |
| [values of stale parameters]   | their owners     | replicas         | CommunicationError        |
| consensus "step"               | all              | all              | an error in a batch       |
| [kinds; consensus "step"]      | all              | all              | an error of the compiler  |
| [size of gradient memory]      | replicas         | replicas         | -                         |
| [consensus "exchanges"]        | all              | all              | a strategy without a run  |
| [digest of the program]        | all              | all              | ConfigError: they differ  |
| [order and form of gradients]  | replicas         | servers          | -                         |
| numbers of rows of the batch   | all              | all              | -                         |
| gradients, by exchange         | replicas         | replicas, owners | CommunicationError alone  |
| end of step                    | all              | all              | an error of the run       |
| [consensus "end of step"]      | all              | all              | that error, on all        |
| [values of served parameters]  | their owners     | all              | CommunicationError alone  |
| [commit of stale gradients]    | replicas         | their owners     | CommunicationError alone  |

Rows that compile are left out once a program is known on all ranks (`Consensus.new`). Between
"may raise" rows a rank that has failed still takes part in every exchange, so that none waits.
After "end of step" nothing fails on one rank alone: all update, or none.

An asynchronous step has the first row, gradients, and the commit. Replicas of a host that sum first
agree among themselves as above.
"""
