"""The contrast of every text of a page of the console, as a browser has computed its colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.sync_api import Page

LEAST_OF_TEXT: Final = 4.5
"""What WCAG AA asks of text."""
LEAST_OF_SIGNS: Final = 3.0
"""What it asks of graphics: the signs of a key."""

_SCRIPT: Final = """() => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const parse = color => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
        const found = [...canvas.getImageData(0, 0, 1, 1).data]; return [...found.slice(0, 3), found[3] / 255]; };
    const over = (top, below, alpha) => [0, 1, 2].map(i => top[i] * alpha + below[i] * (1 - alpha));
    const light = rgb => { const c = rgb.map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; };
    const above = node => { const found = []; for (let at = node; at; at = at.parentElement) found.push(at); return found; };
    const ground = node => above(node).map(at => parse(getComputedStyle(at).backgroundColor)).filter(c => c[3] > 0)
        .reverse().reduce((below, top) => over(top, below, top[3]), [255, 255, 255]);
    const opacity = node => above(node).reduce((all, at) => all * Number(getComputedStyle(at).opacity), 1);
    const written = node => [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
    // What WCAG leaves out: icons that are letters of a font, what cannot be used, and what is not painted.
    const counts = node => written(node) && !node.closest("[data-testid=stIconMaterial], [disabled], [aria-disabled=true], label:has(:disabled), svg")
        && node.getClientRects().length > 0 && opacity(node) > 0;
    // The value of a slider is a child of its handle, and is painted above it.
    const place = node => node.closest("[data-testid=stSliderThumbValue]")?.closest("[role=group]") ?? node;
    return [...document.querySelectorAll("[data-testid=stMain] *, .scope *")].filter(counts).map(node => {
        const below = ground(place(node)), color = parse(getComputedStyle(node).color);
        const a = light(over(color, below, color[3] * opacity(node))), b = light(below);
        return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.textContent.trim().slice(0, 40), String(node.className)]; });
}"""  # noqa: E501 - a script


def faint_texts(page: Page) -> list[tuple[float, str, str]]:
    """The texts with less contrast than WCAG AA asks for: how much, the text, and the classes of its element."""
    found = [(round(contrast, 2), text, classes) for contrast, text, classes in page.evaluate(_SCRIPT)]
    return [each for each in found if each[0] < (LEAST_OF_SIGNS if each[2] == "sign" else LEAST_OF_TEXT)]
