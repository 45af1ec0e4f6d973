"""Work order to commit: a model proposes file writes, deterministic gates decide."""
