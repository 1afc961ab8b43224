"""The simulator: a whole cluster in one thread under one seed, running the code of `gym_ckpt` unchanged.

    streams      seeded, independent streams of chance
    clock        virtual time that jumps to the next timer; deadlock and horizon
    determinism  the one file that touches trio's private names: seeded scheduling, killing tasks, a whole run
    schedules    which runnable tasks run, where they are not simply shuffled
    guard        real clocks and real chance raise while simulated code runs
    trace        every event, hashed
    epoch, node  one life of a process; a process that starts, crashes and starts again
    fates        where faults come in; calm by default
    exchange, network   HTTP between nodes, message by message
    inodes, disk        files that forget on a crash what was not synced
    ports               what `gym_ckpt.ports` asks for, per node and fenced by its epoch
    world        all of it together: `run_world(seed, script)`

`gym_ckpt` never imports this package.
"""
