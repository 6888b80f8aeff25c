"""What programs and people rely on, frozen as text: `python -m tests.frozen` writes it again after a wanted change."""
