"""What is kept between probes: the layouts of pages, so that the next page of the same layout is not parsed anew.

Nothing of it shows in an answer. Targets that expose the same lines share one layout, as replicas of an engine do;
what was not used for longest is dropped.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from servescope.sources.page import LearnedPage

_MOST_TARGETS = 50_000
_MOST_PLANS = 8


class PageLayout:
    """The layout of a page, and the plans for it by what distinguishes them; a lock for whoever renders by one."""

    __slots__ = ("page", "plans", "rendering", "targets")

    def __init__(self, page: LearnedPage) -> None:
        self.page = page
        self.plans: dict[object, Any] = {}
        self.rendering = threading.Lock()
        self.targets = 0

    def keep(self, key: object, plan: Any) -> None:
        """Keep a plan, in place of all others where there are too many."""
        if len(self.plans) >= _MOST_PLANS:
            self.plans.clear()
        self.plans[key] = plan


class PageLayouts:
    """The layout of each target's last page, of `most_series` series altogether. Thread safe."""

    def __init__(self, most_series: int) -> None:
        self._most_series = most_series
        self._lock = threading.Lock()
        self._by_target: OrderedDict[str, PageLayout] = OrderedDict()
        self._shared: dict[object, PageLayout] = {}
        self.series = 0

    def __len__(self) -> int:
        """How many different layouts are kept."""
        return len(self._shared)

    def get(self, target: str) -> PageLayout | None:
        """The layout of the target's last page, None when it is not kept."""
        with self._lock:
            layout = self._by_target.get(target)
            if layout is not None:
                self._by_target.move_to_end(target)
            return layout

    def add(self, target: str, page: LearnedPage) -> PageLayout:
        """The layout of a page that was learned, which is another target's where that is the same."""
        key = page.layout
        with self._lock:
            layout = self._shared.get(key)
            if layout is None:
                layout = self._shared[key] = PageLayout(page)
                self.series += len(page.series)
            former = self._by_target.pop(target, None)
            self._by_target[target] = layout
            layout.targets += 1
            if former is not None:
                self._release(former)
            while (self.series > self._most_series or len(self._by_target) > _MOST_TARGETS) and len(
                self._by_target
            ) > 1:
                self._release(self._by_target.popitem(last=False)[1])
            return layout

    def _release(self, layout: PageLayout) -> None:
        layout.targets -= 1
        if layout.targets == 0:
            del self._shared[layout.page.layout]
            self.series -= len(layout.page.series)
