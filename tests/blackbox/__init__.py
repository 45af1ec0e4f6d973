"""The product from outside: real processes, a real repository, a real endpoint on the loopback."""
