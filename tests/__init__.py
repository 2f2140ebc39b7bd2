"""The tests. A package, since a dependency has one of this name that would be found in its place."""
