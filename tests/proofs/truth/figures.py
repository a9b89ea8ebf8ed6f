"""The contract's figures of one run."""

from __future__ import annotations

from typing import NamedTuple


class Figures(NamedTuple):
    """Prompt tokens of a run: all, those the router predicted, those reused, and the most that could have been."""

    eligible: float
    predicted: float
    reused: float
    best: float

    @property
    def hit_rate(self) -> float:
        """Reused / eligible."""
        return self.reused / self.eligible

    @property
    def best_prefix_hit_rate(self) -> float:
        """Best / eligible."""
        return self.best / self.eligible

    @property
    def efficiency(self) -> float:
        """Reused / best; 1 when nothing could have been reused, and nothing was lost."""
        return self.reused / self.best if self.best else 1.0

    @property
    def skew(self) -> float:
        """(Predicted − reused) / eligible."""
        return (self.predicted - self.reused) / self.eligible
