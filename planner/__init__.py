"""Spec to plan: a model proposes work orders, deterministic rules accept or refuse them."""
