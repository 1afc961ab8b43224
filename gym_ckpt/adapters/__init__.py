"""The production world: `gym_ckpt.ports` over real sockets, files, clocks and signals.

The only package of the implementation that may import them; nothing below `cli` imports it.
"""
