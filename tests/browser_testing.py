"""Opens pages in headless Chromium, for tests of pages that scripts/ makes.

    with browser_testing.browser() as page:
        page.size(390, 800)
        page.colour_scheme("dark")
        page.open(path)
        page.wait("return document.querySelector('canvas')")
        assert page.errors() == [] and page.requests() == []
"""

import contextlib
import json
import os
import pathlib
import shutil
import urllib.parse

import pytest

LOCAL = ("file:", "data:", "blob:", "about:", "chrome:")

# Sets the address of a report behind its #, and is done when the report has been told.
CHANGED = """const [wanted, done] = arguments, before = location.hash;
location.hash = wanted;
if (location.hash === before) done(); else addEventListener('hashchange', () => done(), {once: true});
"""
# Whether a report has drawn the maps and the statistics that its controls say.
DRAWN = """const find = (selector) => document.querySelector(selector);
const is = (name) => find(`#${name}`).value, at = find('#at-shown').textContent || 'null';
const view = find('input[name=view]:checked')?.value;
const told = (selector) => find(selector).dataset.shown;
return find('#runs td')
  && (find('#attention-body').hidden || told('#attention-body')
      === ['run', 'site', 'step', 'probe', 'layer', 'head'].map(is).join(' '))
  && (find('#statistics-body').hidden
      || told('#stat-grid') === [is('stat'), view, at, is('run')].join(' ')
         && told('#curve-value') === ['run', 'stat', 'layer', 'head'].map(is).join(' '))"""


def find(*names):
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        pytest.skip(f"{names[0]} is not installed (apt install chromium chromium-driver)")
    return found


def stamp(url):
    """What tells a file that an URL names from others and from what it was before."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "file":
        return url, None
    path = urllib.parse.unquote(parts.path)
    return path, os.stat(path).st_mtime_ns


class Page:
    """One tab. Errors and requests are collected from the moment the page is opened."""

    def __init__(self, driver):
        self.driver = driver
        self._errors, self._requests = [], []
        self._opened = None

    def open(self, where):
        """`where`: a file, or a URL with its scheme."""
        self._forget()
        url = str(where)
        if "://" not in url and not url.startswith("about:"):
            url = pathlib.Path(where).resolve().as_uri()
        self.driver.get(url)
        self._opened = stamp(url)

    def show(self, path, **state):
        """Opens a report at what `state` says and waits until it shows that.

        Where the tab has the report already, its reader changes the address: to load a page with
        plots takes seconds.
        """
        self._forget()
        wanted = "&".join(f"{key}={value}" for key, value in state.items())
        if self._opened == stamp(path.as_uri()):
            self.hover(self.one("h1"))  # and points at nothing else
            self.run("document.activeElement.blur()")
            self.run_async(CHANGED, wanted)
        else:
            self.open("about:blank")
            self.open(f"{path.as_uri()}#{wanted}" if wanted else path)
        self.wait(DRAWN)
        self.run_async("requestAnimationFrame(() => setTimeout(arguments[0]))")  # of a new size, too

    def _forget(self):
        """What was collected until now."""
        self._collect()
        self._errors.clear()
        self._requests.clear()

    def size(self, width, height):
        """Size of what the page sees, in CSS pixels (smaller than a window can be, if need be)."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})

    def colour_scheme(self, name):
        """`light` or `dark`, what the page sees as the wish of its reader."""
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def run(self, script, *arguments):
        """What the body of a JavaScript function returns; arguments[0] ... are its arguments."""
        return self.driver.execute_script(script, *arguments)

    def run_async(self, script, *arguments):
        """The same for a body that calls its last argument with the result when it is done."""
        return self.driver.execute_async_script(script, *arguments)

    def wait(self, script, *arguments, seconds=30):
        """What `script` returns once that is true in the sense of JavaScript."""
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(self.driver, seconds, poll_frequency=0.05)
        return waiting.until(lambda _: self.run(script, *arguments), f"not true in {seconds} s: {script}")

    def one(self, selector):
        """The first element of a CSS selector."""
        return self.driver.find_element("css selector", selector)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def hover(self, element, x=None, y=None):
        """Moves the mouse to the middle of an element, or to x, y from its upper left corner."""
        from selenium.webdriver import ActionChains

        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        size = element.size
        actions = ActionChains(self.driver, duration=0)
        if x is None:
            actions.move_to_element(element)
        else:  # selenium counts from the middle
            actions.move_to_element_with_offset(
                element, round(x - size["width"] / 2), round(y - size["height"] / 2))
        actions.perform()

    def press(self, *keys):
        """Sends keys to what has the focus; names as in selenium's Keys, e.g. "ARROW_LEFT"."""
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.keys import Keys

        for key in keys:
            ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def screenshot(self, path, whole=True):
        """PNG of the page, or of what fits into the window."""
        import base64

        given = {"captureBeyondViewport": whole}
        if whole:
            box = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
            given["clip"] = {**box, "scale": 1}
        image = self.driver.execute_cdp_cmd("Page.captureScreenshot", given)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(image))

    def errors(self):
        """Messages of the console at the level of errors, since the page was opened."""
        self._collect()
        return list(self._errors)

    def requests(self):
        """URLs that the page asked for and that leave it: no file:, data: or blob:."""
        self._collect()
        return list(self._requests)

    def _collect(self):
        for entry in self.driver.get_log("browser"):
            if entry["level"] == "SEVERE":
                self._errors.append(entry["message"])
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                given = message["params"]
                url = given.get("request", given)["url"]
                if not url.startswith(LOCAL):
                    self._requests.append(url)


@contextlib.contextmanager
def browser():
    """A Page of a headless Chromium, closed at the end. Skips the test where there is none."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = find("chromium", "chromium-browser", "google-chrome")
    flags = ["headless=new", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,900",
             "hide-scrollbars", "force-color-profile=srgb", "no-first-run",
             "disable-background-networking", "disable-component-update"]
    if os.name == "posix" and os.geteuid() == 0:
        flags.append("no-sandbox")  # Chromium refuses to run as root with it
    for flag in flags:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(find("chromedriver")))
    try:
        driver.set_page_load_timeout(60)
        driver.set_script_timeout(60)
        yield Page(driver)
    finally:
        driver.quit()
