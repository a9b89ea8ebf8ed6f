"""The icons: drawings of our own, as CSS masks that have the colour of the text beside them.

Streamlit's own are letters of a font of 370 kB, of which a reader sees the names until it has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

# Lines on a square of 24 by 24.
_PAGE_PATHS: Final[Mapping[str, str]] = {
    "Cutover": "M3 8h14l-4-4M21 16H7l4 4",
    "Readiness": "M4 6h10M4 12h7M4 18h7M13 16l3 3 5-7",
    "Plan": "M6 21V4h12l-3 4.5 3 4.5H6",
    "Decisions": "M4 20h16M6 13l9-9 4 4-9 9H6z",
    "Self-test": "M9 3h6M10 3v6L4.5 20h15L14 9V3M7.5 15h9",
    "Fleet": "M4 5h16v5H4zM4 14h16v5H4z",
    "Deployment": "M4 4v16h16M7 15l4-5 3 3 6-7",
    "Compare": "M12 3v18M9 7H4v10h5M15 7h5v10h-5",
    "Alerts": "M6 17v-6a6 6 0 0 1 12 0v6l2 2H4zM10 22h4",
    "Sources": "M12 13v8M8.5 10a5 5 0 0 1 7 0M5 6.5a10 10 0 0 1 14 0",
    "Customers": "M4 14v6h16v-6M12 16V4M7 9l5-5 5 5",
    "Faults": "M13 3L5 14h6l-1 7 9-12h-6z",
}
_NOTICE_PATHS: Final[Mapping[str, str]] = {
    "Info": "M3 12a9 9 0 0 1 18 0a9 9 0 0 1-18 0M12 11v6M12 7v1",
    "Success": "M3 12a9 9 0 0 1 18 0a9 9 0 0 1-18 0M8 12l3 3 5-6",
    "Warning": "M12 4L2.5 20h19zM12 10v5M12 17v1",
    "Error": "M8.5 3h7L21 8.5v7L15.5 21h-7L3 15.5v-7zM12 7v6M12 16v1",
}
_DOWNLOAD: Final = "M4 15v5h16v-5M12 4v11M7 10l5 5 5-5"
_CHEVRON: Final = "M9 5l7 7-7 7"
# Of Streamlit's own icons those that are no chevron, by what they are in.
_FOREIGN_PATHS: Final[Mapping[str, str]] = {
    "stExpandSidebarButton": "M5 5l7 7-7 7M12 5l7 7-7 7",
    "stSidebarCollapseButton": "M19 5l-7 7 7 7M12 5l-7 7 7 7",
    "stFileUploaderDropzone": _PAGE_PATHS["Customers"],
}
_ICON: Final = (
    "content: ''; flex: none; display: inline-block; width: 1.15rem; height: 1.15rem; background: currentColor; "
    "mask-size: 100%; mask-repeat: no-repeat;"
)


def style_icons(pages: Mapping[str, str]) -> str:
    """The CSS of all icons, as HTML; `pages` are the titles of the console's pages by the last part of their URLs."""
    notice, foreign = '[data-testid="stAlertContent{}"]', '[data-testid="stIconMaterial"]'
    link = ':is([data-testid="stTopNavLink"], [data-testid="stTopNavDropdownLink"], [data-testid="stSidebarNavLink"])'
    placed = {f'{link}[href$="/{url}"]::before': _PAGE_PATHS[title] for url, title in pages.items()}
    placed |= {f"{notice.format(kind)}::before": path for kind, path in _NOTICE_PATHS.items()}
    placed |= {'[data-testid="stDownloadButton"] button::before': _DOWNLOAD, f"{foreign}::before": _CHEVRON}
    placed |= {f'[data-testid="{place}"] {foreign}::before': path for place, path in _FOREIGN_PATHS.items()}
    rules = [
        f"{', '.join(placed)} {{ {_ICON} }}",
        *(f"{selector} {{ mask-image: {_draw(path)}; }}" for selector, path in placed.items()),
        # Neither is the font asked for, nor are the names shown that are its letters.
        f"{foreign} {{ font-family: inherit !important; font-size: 0 !important; }}",
        f"{', '.join(map(notice.format, _NOTICE_PATHS))} {{ display: flex; align-items: center; gap: 0.7rem; }}",
        '[data-testid="stDownloadButton"] button { gap: 0.4rem; }',
        f"details[open] > summary {foreign}::before {{ transform: rotate(90deg); }}",
    ]
    return f"<style>{' '.join(rules)}</style>"


def _draw(path: str) -> str:
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24' fill='none' stroke='#000' stroke-width='2' "
        f"stroke-linecap='round' stroke-linejoin='round'><path d='{path}'/></svg>"
    )
    # Escaped whole, as Streamlit's sanitiser drops a style that has a tag in it.
    return f'url("data:image/svg+xml,{quote(svg)}")'
