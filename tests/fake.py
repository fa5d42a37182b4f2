"""How tests use the fake server: it lies in the kit."""

from lifecycle.testing.fake import DIRECT, SCRIPT, control, fake_argv, fake_command, fake_flags, literal, stats

__all__ = ["DIRECT", "SCRIPT", "control", "fake_argv", "fake_command", "fake_flags", "literal", "stats"]
