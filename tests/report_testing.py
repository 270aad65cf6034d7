"""What the tests of reports share: what a browser shows, and what the files hold."""

import re

import h5py

SHOWN = "return document.querySelector('#attention-body').dataset.shown"


def weights(run, step, probe, layer, head):
    """One map read by h5py alone, (query, key)."""
    with h5py.File(run / "log.h5") as file:
        group = file["attention/self"]
        row = list(group["step"]).index(step)
        packed = group["weights"][row, probe, layer, head].astype(float)
        return packed * group["weights"].attrs.get("scale_factor", [1.0])[0]


def statistic(run, name):
    with h5py.File(run / "log.h5") as file:
        return file[f"heads/self/{name}"][:]


def shown_weight(number):
    return "0" if abs(number) < 0.0005 else f"{number:.3f}"


def four_digits(number):
    return float(f"{number:.4g}")


def choose(page, name, value):
    page.run("""const select = document.querySelector(arguments[0]);
        select.value = arguments[1];
        select.dispatchEvent(new Event('change', {bubbles: true}))""", f"#{name}", str(value))


def view(page, run=0, step=20, probe=0, layer=0, head=0):
    """Selects a map and waits until it is drawn."""
    for name, value in (("step", step), ("probe", probe), ("layer", layer), ("head", head)):
        choose(page, name, value)
    page.wait(f"{SHOWN} === '{run} self {step} {probe} {layer} {head}'")


def settle(page):
    """Waits until all that moves the page's layout is drawn, so that clicks meet what they mean."""
    page.wait("return document.querySelectorAll('.plot:not([hidden]) .main-svg').length >= 4")
    page.run_async("requestAnimationFrame(() => setTimeout(arguments[0]))")


def fits_the_window(page):
    """Whether nothing sticks out to the side, once the page is drawn for its size."""
    settle(page)
    page.wait("return [...document.querySelectorAll('.plot:not([hidden]) .main-svg')].every(\n"
              "drawn => drawn.getBoundingClientRect().width <= innerWidth)")
    wide, seen = page.run("const root = document.documentElement;"
                          "return [root.scrollWidth, root.clientWidth]")
    return wide <= seen


def token_numbers(page):
    return page.run("return [...document.querySelectorAll('.token')].map("
                    "token => token.lastChild.textContent)")


def text(page, selector):
    return page.run("return document.querySelector(arguments[0]).textContent", selector)


def numbers_in(said):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", said)]
