"""Templates of files that deepbuild writes; `deepbuild.render` fills them in."""
