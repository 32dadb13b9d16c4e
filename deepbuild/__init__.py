"""Builds DeepSpeed's C++/CUDA ops right, the first time, on any machine, and proves it."""

from deepbuild._version import __version__

__all__ = ["__version__"]
