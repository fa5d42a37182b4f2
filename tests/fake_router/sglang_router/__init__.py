"""Stands for sglang-router 0.3.2 where the real one is not installed: see `launch_router`."""
