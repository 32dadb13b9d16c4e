"""A folder of wheels as a package index, and what a machine finds in one: here or elsewhere."""

from deepbuild.wheelhouse.links import Candidate
from deepbuild.wheelhouse.reading import list_wheels, read_manifest, read_metadata
from deepbuild.wheelhouse.writing import write_index

__all__ = ["Candidate", "list_wheels", "read_manifest", "read_metadata", "write_index"]
