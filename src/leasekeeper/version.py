"""The version of this program. A module of its own, so that every layer may name it."""

__version__ = "0.1.0"
