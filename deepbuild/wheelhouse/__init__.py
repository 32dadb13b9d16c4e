"""A folder of wheels as a package index."""

from deepbuild.wheelhouse.writing import write_index

__all__ = ["write_index"]
