"""The page in a headless browser: drawn, sorted, readable in the dark and on a phone."""

import shutil

import pytest

from experiments.report import Problem, Result, write_report
from tests.report import samples

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

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
  const lines = [...plot.querySelectorAll("[data-series]")]
    .filter(line => getComputedStyle(line).display !== "none");
  return [plot.getAttribute("aria-label"), box.width, box.height, lines.length];
})"""
OPEN = 'document.querySelectorAll("details").forEach(one => one.open = true)'


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
def pages(tmp_path_factory):
    """Stored results with every kind of figure, and the same with hostile names."""
    folder = tmp_path_factory.mktemp("pages")
    runs = samples.stored("results/demo", "results/k-tied/truncated-mnist-mlp")
    runs += samples.stored("results/k-tied/mnist-mlp")
    results = [Result.from_dict(run) for run in runs]
    usual = write_report(results, folder / "usual.html")
    bad, image, *_ = NAMES
    run = samples.stored("results/demo")[0]
    run |= {
        "experiment": f"e/{bad}",
        "title": bad,
        "figures": samples.with_text(run["figures"], bad),
    }
    results = [Result.from_dict(run | {"variant": name}) for name in NAMES]
    problems = [Problem(bad, image)]
    hostile = write_report(results, folder / "hostile.html", title=bad, problems=problems)
    return {"usual": usual.as_uri(), "hostile": hostile.as_uri()}


@pytest.fixture
def browse(driver, pages):
    """A function that opens a page at some width and in some colour scheme."""

    def opened(name="usual", *, width=1200, scheme="light"):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        emulate(driver, scheme)
        driver.get(pages[name])
        return driver

    return opened


def emulate(driver, scheme, media=""):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features, "media": media})


def column(driver, number):
    """What a column of the first table says, without standard errors."""
    cells = driver.execute_script(
        """const [body] = document.querySelector(".scores").tBodies;
        return [...body.rows].map(row => row.cells[arguments[0]].textContent.trim())""",
        number,
    )
    return [cell.partition("±")[0].strip() for cell in cells]


def colours(driver):
    """Of the page, of the words in a figure and of its first line."""
    return driver.execute_script(
        """const plot = document.querySelector(".plot");
        return [getComputedStyle(document.body).backgroundColor,
                getComputedStyle(plot.querySelector("text")).fill,
                getComputedStyle(plot.querySelector("polyline")).stroke]"""
    )


def loudness(colour):
    numbers = colour[colour.index("(") + 1 : -1].split(",")
    return sum(float(one) for one in numbers[:3])


@pytest.mark.parametrize("name", ["usual", "hostile"])
def test_every_figure_is_drawn_without_a_word_in_the_console(browse, name):
    driver = browse(name)
    driver.get_log("browser")
    driver.get(driver.current_url)
    driver.execute_script(OPEN)
    drawn = driver.execute_script(DRAWN)
    assert len(drawn) > 10
    for label, width, height, lines in drawn:
        assert min(width, height) > 150, label
        assert lines > 0, label
    assert driver.get_log("browser") == []


def test_table_sorts_by_click_and_by_keyboard(browse):
    driver = browse()
    table = driver.find_element(By.CSS_SELECTOR, ".scores")
    headers = table.find_elements(By.TAG_NAME, "th")
    accuracy = next(h for h in headers if h.text.startswith("accuracy"))
    index = headers.index(accuracy)
    button = accuracy.find_element(By.TAG_NAME, "button")
    button.click()
    assert accuracy.get_attribute("aria-sort") == "descending", "the best first"
    values = [float(value) for value in column(driver, index)]
    assert values == sorted(values, reverse=True)
    button.send_keys(Keys.ENTER)
    assert accuracy.get_attribute("aria-sort") == "ascending"
    assert [float(v) for v in column(driver, index)] == sorted(values)
    driver.execute_script("arguments[0].focus()", headers[0].find_element(By.TAG_NAME, "button"))
    driver.switch_to.active_element.send_keys(Keys.SPACE)
    assert column(driver, 0) == ["k-tied-1", "k-tied-2", "k-tied-3", "mean-field", "plain"]
    assert accuracy.get_attribute("aria-sort") == "none"
    elbo = next(h for h in headers if h.text.startswith("−ELBO"))
    for _ in range(2):
        elbo.find_element(By.TAG_NAME, "button").click()
        assert column(driver, headers.index(elbo))[-1] == "", "plain has no ELBO: it comes last"


@pytest.mark.parametrize("name", ["usual", "hostile"])
def test_no_sideways_scrolling_on_a_phone(browse, name):
    driver = browse(name, width=375)
    driver.execute_script(OPEN)
    widths = driver.execute_script(
        "return [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"
    )
    assert widths == [375, 375, 375]
    wide = driver.execute_script(
        """return [...document.querySelectorAll("main *")].filter(one => !one.closest(".scroll, svg")
        && one.getBoundingClientRect().right > 376).map(one => one.outerHTML.slice(0, 200))"""
    )
    assert wide == []
    assert all(one[1] <= 375 for one in driver.execute_script(DRAWN))


def test_dark_mode_and_paper_change_page_and_figures(browse):
    driver = browse(scheme="light")
    light = colours(driver)
    assert loudness(light[0]) > 600 > 200 > loudness(light[1])
    emulate(driver, "dark")
    dark = colours(driver)
    assert loudness(dark[0]) < 200 < 600 < loudness(dark[1])
    assert dark[2] != light[2]
    emulate(driver, "dark", media="print")
    assert colours(driver) == light, "paper is white"
    emulate(driver, "light")


def test_legend_hides_and_shows_a_variant(browse):
    driver = browse()
    count = """return [...document.querySelectorAll(".experiment .plot")[0].children]
        .filter(line => line.dataset.series && getComputedStyle(line).display !== "none").length"""
    button = driver.find_element(By.CSS_SELECTOR, ".experiment > .legend button")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    before = driver.execute_script(count)
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-pressed") == "false"
    assert driver.execute_script(count) < before
    button.click()
    assert driver.execute_script(count) == before


def test_hostile_names_are_text_and_nothing_runs(browse):
    driver = browse("hostile")
    driver.execute_script(OPEN)  # an open alert would raise UnexpectedAlertPresentException
    text = driver.find_element(By.TAG_NAME, "body").text
    assert text.count(samples.HOSTILE) > 5
    assert all(name in text for name in NAMES)
    assert driver.find_elements(By.CSS_SELECTOR, "img[src=x]") == []
    names = "return [...document.querySelectorAll('.plot title')].map(one => one.textContent)"
    assert all(any(name in title for title in driver.execute_script(names)) for name in NAMES)
