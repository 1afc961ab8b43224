"""The simulator: a whole cluster in one thread under one seed, running the code of `gym_ckpt` unchanged."""
