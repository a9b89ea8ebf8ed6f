"""placeholder"""


def measure_speed() -> None:
    """x."""
