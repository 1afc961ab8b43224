"""Keeps reinforcement-learning rollouts alive through crashes and preemptions, exactly once."""
