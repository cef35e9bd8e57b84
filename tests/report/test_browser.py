"""The page in a headless browser: visible, also in the dark and on paper."""

import shutil

import pytest

from experiments.report import Result, write_report
from tests.report import samples

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium or chromedriver is not installed"
)

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1200,900"),
)
NAMES = (samples.HOSTILE, '<img src=x onerror="alert(2)">', "&lt;")
DRAWN = """
return [...document.querySelectorAll(".plot")].map(plot => {
  const box = plot.getBoundingClientRect();
  const lines = [...plot.querySelectorAll("g[class]")]
    .filter(line => getComputedStyle(line).display !== "none");
  return [plot.getAttribute("aria-label"), box.width, box.height, lines.length];
})"""
COLOURS = """const plot = document.querySelector(".plot");
return [getComputedStyle(document.body).backgroundColor,
        getComputedStyle(plot.querySelector("text")).fill,
        getComputedStyle(plot.querySelector("polyline")).stroke]"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A page of stored results, and of results with hostile names."""
    runs = samples.stored("results/demo", "results/k-tied/truncated-mnist-mlp")
    bad = samples.HOSTILE
    hostile = runs[0] | {"experiment": bad, "title": bad}
    hostile["figures"] = samples.with_text(runs[0]["figures"], bad)
    runs += [hostile | {"variant": name} for name in NAMES]
    path = tmp_path_factory.mktemp("page") / "report.html"
    results = [Result.from_dict(run) for run in runs]
    return write_report(results, path, title=bad).as_uri()


@pytest.fixture
def page(driver, address):
    """The page with everything unfolded."""
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [], "media": ""})
    driver.get(address)
    driver.execute_script('document.querySelectorAll("details").forEach(d => d.open = true)')
    return driver


def test_everything_is_visible_as_text_and_nothing_runs(page):
    drawn = page.execute_script(DRAWN)
    assert len(drawn) > 10
    for label, width, height, lines in drawn:
        assert min(width, height) > 150, label
        assert lines > 0, label
    text = page.find_element(By.TAG_NAME, "body").text  # an open alert would raise an error
    assert all(name in text for name in NAMES)
    assert page.find_elements(By.CSS_SELECTOR, "img[src=x]") == []
    assert page.get_log("browser") == []


def test_page_and_figures_have_colours_for_the_dark_and_for_paper(page):
    seen = []
    for scheme, media in (("light", ""), ("dark", ""), ("dark", "print")):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        emulated = {"features": features, "media": media}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
        seen.append(page.execute_script(COLOURS))
    light, dark, paper = seen
    assert not set(light) & set(dark)
    assert paper == light


def test_legend_hides_and_shows_a_variant(page):
    before = page.execute_script(DRAWN)[0]
    box = page.find_element(By.CSS_SELECTOR, ".experiment > .legend input")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", box)
    box.click()
    assert page.execute_script(DRAWN)[0][3] == before[3] - 1
    box.click()
    assert page.execute_script(DRAWN)[0] == before
