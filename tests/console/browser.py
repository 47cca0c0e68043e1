# SPDX-License-Identifier: PostgreSQL
"""Chromium, driven by Selenium, as the tests of the console use it: keys instead of clicks, sizes, colours, and what a page weighs."""

import os
import pathlib
import shutil
import tempfile

import pytest

from harness.broker import free_port
from harness.postgres import PATIENCE_S, clean_environment, wait_until

MISSING = "there is no Chromium to drive: tools/setup.sh test-console installs it (chromium, chromium-driver, python3-selenium)"
try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys
except ImportError:
    webdriver = None
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
WIDE, NARROW = 1280, 400
TABS_MAX = 150  # no page has more places to go by keyboard

# Each text against what is behind it (WCAG 2, "contrast ratio"): those that are hard to read, with their ratio.
CONTRAST = """
const channel = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const colour = (text) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return {a: a / 255, l: 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255)};
};
const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
        const ground = colour(getComputedStyle(at).backgroundColor);
        if (ground.a === 1) return ground.l;
    }
    return 1;
};
const bad = [];
for (const element of document.body.querySelectorAll('*')) {
    const own = Array.from(element.childNodes).some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest('svg') || element.matches('.out, .out *, .skip, option')) continue;
    const one = colour(getComputedStyle(element).color).l, two = behind(element);
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < 4.5) bad.push([element.tagName, element.className, element.textContent.trim().slice(0, 40), ratio.toFixed(2)]);
}
return bad;
"""
# What does not fit into the width, and texts that are cut.
TOO_WIDE = """
const width = document.documentElement.clientWidth;
return [document.scrollingElement.scrollWidth > width ? 'page' : null, ...Array.from(document.body.querySelectorAll('*'), (element) => {
    const box = element.getBoundingClientRect();
    return element.checkVisibility() && !element.closest('.out, .skip, pre, nav, thead, caption') && box.width > 0 && (box.right > width + 1 || box.left < -1)
        ? `${element.tagName}.${element.className} ${box.left}-${box.right}` : null;
})].filter((found) => found);
"""
# Where the keyboard is: its words, and whether the eye can see it.
FOCUS = """
const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
return {body: at === document.body, tag: at.tagName, id: at.id, type: at.type || '', name: at.name || '',
    text: (at.getAttribute('aria-label') || at.textContent || at.value || '').trim(),
    seen: (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 || at.id === 'main') &&
        box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
    href: at.getAttribute('href')};
"""


class Browser:
    """One person's window. Addresses are of the console at `home`."""

    def __init__(self, home):
        self.home = home
        self.profile = tempfile.mkdtemp(prefix="pgonce-browser-")
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        # Chromium's own sandbox needs rights that a container does not give; it is shown only pages of the console under test.
        for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-device-scale-factor=1",
                     "--disable-background-networking", "--no-first-run", f"--user-data-dir={self.profile}", "--lang=en", "--no-proxy-server"):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER, port=free_port(), env={**clean_environment(), "TZ": "Europe/Berlin"}))
        self.driver.set_page_load_timeout(PATIENCE_S)
        self.size(WIDE)
        self.colours("light")

    def close(self):
        self.driver.quit()
        shutil.rmtree(self.profile, ignore_errors=True)

    def tell(self, command, **arguments):
        self.driver.execute_cdp_cmd(command, arguments)

    def size(self, width, height=900):
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def colours(self, scheme):
        self.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def script(self, allowed):
        self.tell("Emulation.setScriptExecutionDisabled", value=not allowed)

    def open(self, path):
        self.driver.get(self.home + path)
        return self

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        found = self.all(selector)
        assert len(found) == 1, (selector, len(found), self.text()[:2000])
        return found[0]

    def text(self, selector="body"):
        """In one call, since the page may replace its parts at any time; "" if there is no such part."""
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def until(self, condition, what):
        try:
            wait_until(condition, what)
        except TimeoutError as late:
            raise AssertionError(f"{late}; the page: {self.driver.current_url}\n{self.text()[:3000]}") from late
        return self

    def until_says(self, words, selector="body"):
        return self.until(lambda: words in self.text(selector), f"{words!r} in {selector}")

    def complaints(self):
        """What the browser's console says: errors of scripts, and what the Content-Security-Policy has stopped."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()
        return self

    def focus(self):
        return self.run(FOCUS)

    def tab_to(self, fits, what):
        """By the Tab key alone; each place on the way can be seen. fits(focus)."""
        for _ in range(TABS_MAX):
            at = self.focus()
            if not at["body"]:
                assert at["seen"], f"the keyboard is at a place that cannot be seen: {at}"
                if fits(at):
                    return self
            self.press(Keys.TAB)
        raise AssertionError(f"{TABS_MAX} times Tab, and no {what}; the page: {self.text()[:2000]}")

    def submit(self, keys=None):
        """Presses Enter, and waits for the next page."""
        self.run("document.documentElement.dataset.old = ''")
        self.press(keys or Keys.ENTER)
        return self.until(lambda: self.run("return document.documentElement.dataset.old === undefined && document.readyState === 'complete'"), "the next page")

    def weight(self):
        """Bytes of this page and all that it has loaded."""
        return self.run("return performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource'))"
                        ".reduce((sum, entry) => sum + entry.encodedBodySize, 0)")

    def picture(self, name, height=None):
        """Into PGONCE_SCREENSHOTS, for the documentation; else it is only taken."""
        png = self.driver.get_screenshot_as_png()
        assert png.startswith(b"\x89PNG")
        if os.environ.get("PGONCE_SCREENSHOTS"):
            (pathlib.Path(os.environ["PGONCE_SCREENSHOTS"]) / f"console-{name}.png").write_bytes(png)


def require():
    if not (webdriver and CHROMIUM and DRIVER):
        pytest.skip(MISSING)
