"""Servers that hold parts of a model, and the workers that push to them and pull from them."""
