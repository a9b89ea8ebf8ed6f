"""What a reader of a page of the console cannot read: texts that are cut, or that run into each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.sync_api import Page

_SCRIPT: Final = """() => {
    const main = document.querySelector("[data-testid=stMain]"), found = [];
    let written = [];
    const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const at = node.parentElement, text = node.textContent.trim();
        // What is typed scrolls in its field, and what has no size is for screen readers.
        if (!text || at.closest("input, textarea, style")) continue;
        if (!at.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        const range = document.createRange(); range.selectNodeContents(node);
        for (const box of range.getClientRects()) if (box.width > 1 && box.height > 1) written.push({at, text, box});
    }
    const clips = node => {
        const found = [main.getBoundingClientRect()];
        for (let on = node; on !== main; on = on.parentElement)
            if ((on.tagName === "svg" || !(on instanceof SVGElement)) && getComputedStyle(on).overflowX !== "visible")
                found.push(on.getBoundingClientRect());
        return found;
    };
    // What is below the end of a field that scrolls is not painted.
    for (const each of written) each.clips = clips(each.at);
    written = written.filter(({box, clips}) =>
        clips.slice(1).every(clip => box.top < clip.bottom && box.bottom > clip.top));
    for (const {text, box, clips} of written)
        if (clips.some(clip => box.left < clip.left - 1.5 || box.right > clip.right + 1.5))
            found.push(`cut: ${text.slice(0, 60)}`);
    written.sort((a, b) => a.box.top - b.box.top);
    written.forEach((one, place) => {
        for (let next = place + 1; next < written.length && written[next].box.top < one.box.bottom - 3; next++) {
            const other = written[next];
            const across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
            const down = Math.min(one.box.bottom, other.box.bottom) - other.box.top;
            if (one.at !== other.at && across > 2 && down > 0.5 * Math.min(one.box.height, other.box.height))
                found.push(`overlapping: ${one.text.slice(0, 40)} | ${other.text.slice(0, 40)}`);
        }
    });
    return [...new Set(found)];
}"""


def cut_texts(page: Page) -> list[str]:
    """The texts of a page that end at the edge of what they are in, and the pairs that overlap."""
    found: list[str] = page.evaluate(_SCRIPT)
    return found
