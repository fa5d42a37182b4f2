from tests.cli.conftest import stoker

__all__ = ["stoker"]
