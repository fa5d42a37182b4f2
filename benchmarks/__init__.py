"""The figures of the README: `make bench` measures them, each beside the same work in datatrove where it has one."""
