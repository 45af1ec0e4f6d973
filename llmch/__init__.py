"""argv in, child argv out: the command that starts planner and factory."""

__version__ = "0.1.0"
