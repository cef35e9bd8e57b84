"""The page in a headless browser: drawn, sorted, readable in the dark and on a phone."""

import json
import shutil
import time

import pytest

from experiments.report import Problem, Result, write_report
from tests.report import samples, study

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
NAMES = (samples.HOSTILE, '<img src=x onerror="alert(2)">', "%{x} &lt;")
DRAWN = """
return [...document.querySelectorAll(".figure")].map(figure => {
  const plot = figure.querySelector(".plot"), svg = plot.querySelector("svg.main-svg");
  const box = svg ? svg.getBoundingClientRect() : {width: 0, height: 0};
  const marks = ".scatterlayer .trace path, .heatmaplayer image[*|href^='data:image/png']";
  const inner = svg ? svg.querySelectorAll(marks).length : 0;
  return [figure.querySelector(".figure-title").textContent, box.width, box.height, inner];
})"""
OPEN = """
document.documentElement.style.scrollBehavior = "auto";
document.querySelectorAll("details").forEach(one => one.open = true)"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Three pages: the samples, a study of posteriors, and both with hostile names."""
    folder = tmp_path_factory.mktemp("pages")
    results = [Result.from_dict(run) for run in samples.every_result()]
    usual = write_report(results, folder / "usual.html", pictures=samples.pictures)
    results = [Result.from_dict(run) for run in study.every_result()]
    studied = write_report(results, folder / "study.html")
    bad, image, *_ = NAMES
    runs = [samples.fashion("k-tied-2", 0) | {"variant": name} for name in NAMES]
    for run in runs:
        run |= {"experiment": f"e/{bad}", "title": bad}
        run["figures"]["layers"][0]["name"] = bad
        run["figures"]["ood"]["score"] = image
        run["figures"] |= study.hostile(bad)
    results = [Result.from_dict(run) for run in runs]
    problems = [Problem(bad, image)]
    hostile = write_report(results, folder / "hostile.html", title=bad, problems=problems)
    return {"usual": usual.as_uri(), "study": studied.as_uri(), "hostile": hostile.as_uri()}


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


def emulate(driver, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def wait(condition, seconds=15.0):
    """The value of `condition()` once it is true, or the last one."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return value


def scroll_through(driver):
    """Unfold everything and bring every figure into view."""
    driver.execute_script(OPEN)
    height = driver.execute_script("return document.documentElement.scrollHeight")
    for top in range(0, height, 1200):
        driver.execute_script("window.scrollTo(0, arguments[0])", top)
        time.sleep(0.05)
    return wait(
        lambda: all(one[3] for one in driver.execute_script(DRAWN)) and driver.execute_script(DRAWN)
    )


def column(driver, number, table=0):
    return driver.execute_script(
        """const table = document.querySelectorAll(".comparison")[arguments[0]];
        return [...table.tBodies].map(body => body.rows[0].cells[arguments[1]].dataset.value)""",
        table,
        number,
    )


def colours(driver):
    return driver.execute_script(
        """const tick = document.querySelector(".figure .xtick text");
        const trace = document.querySelector(".figure .trace path.js-line");
        return [getComputedStyle(document.body).backgroundColor, getComputedStyle(tick).fill,
                getComputedStyle(trace).stroke]"""
    )


def loudness(colour):
    numbers = colour[colour.index("(") + 1 : -1].split(",")
    return sum(float(one) for one in numbers[:3])


@pytest.mark.parametrize("name", ["usual", "study", "hostile"])
def test_every_figure_is_drawn_without_a_word_in_the_console(browse, name):
    driver = browse(name)
    driver.get_log("browser")
    driver.get(driver.current_url)
    drawn = scroll_through(driver)
    assert len(drawn or []) > 10
    for title, width, height, traces in drawn:
        assert min(width, height) > 150, title
        assert traces > 0, title
    assert driver.get_log("browser") == []


def test_heat_maps_are_beside_each_other_and_below_each_other_on_a_phone(browse):
    for width, beside in ((1200, True), (375, False)):
        driver = browse("study", width=width)
        assert scroll_through(driver)
        boxes = driver.execute_script(
            """return [...document.querySelector(".maps").querySelectorAll(".figure")].map(one => {
              const box = one.getBoundingClientRect(); return [box.left, box.top]; })"""
        )
        lefts, tops = (len({one[i] for one in boxes}) for i in (0, 1))
        assert (lefts, tops) == ((3, 1) if beside else (1, 3))


def test_heat_maps_show_the_colours_of_their_bar(browse):
    driver = browse("study")
    assert scroll_through(driver)
    bars = driver.find_elements(By.CSS_SELECTOR, ".colour-bar")
    assert len(bars) == len(study.VARIANTS) * len(study.LAYERS)
    assert all(bar.get_attribute("aria-label") for bar in bars)
    background = (
        bars[0].find_element(By.CSS_SELECTOR, ".colours").value_of_css_property("background-image")
    )
    assert background.startswith("linear-gradient(90deg, rgb(68, 1, 84)")
    ranges = driver.execute_script(
        """return [...document.querySelector(".maps").querySelectorAll(".plot")].map(plot =>
        [plot._fullData[0].zmin, plot._fullData[0].zmax, plot._fullData[0].colorscale[0][1]])"""
    )
    assert len({tuple(one) for one in ranges}) == 1
    assert ranges[0][2] == "#440154"


def test_tables_of_gradients_sort_and_figures_of_steps_obey_the_legend(browse):
    driver = browse("study")
    assert scroll_through(driver)
    tables = driver.find_elements(By.CSS_SELECTOR, ".comparison")
    number = next(i for i, table in enumerate(tables) if "step 100" in table.text)
    heads = tables[number].find_elements(By.TAG_NAME, "th")
    driver.execute_script("arguments[0].click()", heads[1].find_element(By.TAG_NAME, "button"))
    values = [float(value) for value in column(driver, 1, table=number)]
    assert values == sorted(values, reverse=True)
    count = """return document.querySelector(".figure").querySelectorAll(".scatterlayer .trace").length"""
    assert driver.execute_script(count) == 9, "three variants with a mean and two seeds"
    driver.find_element(By.CSS_SELECTOR, ".legend button").send_keys(Keys.ENTER)
    assert wait(lambda: driver.execute_script(count) == 6)


def test_nothing_is_loaded_from_elsewhere(browse):
    driver = browse()
    driver.get_log("performance")
    driver.get(driver.current_url)
    scroll_through(driver)
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    assert asked, "the page itself is in the log"
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)
    entries = "return performance.getEntriesByType('resource').map(entry => entry.name)"
    assert not [n for n in driver.execute_script(entries) if not n.startswith(("data:", "blob:"))]


def test_table_sorts_by_click_and_by_keyboard(browse):
    driver = browse()
    headers = driver.find_elements(By.CSS_SELECTOR, ".comparison")[0].find_elements(
        By.TAG_NAME, "th"
    )
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
    assert column(driver, 0) == ["k-tied-2", "k-tied-10", "mean-field", "plain"]
    assert accuracy.get_attribute("aria-sort") == "none"


def test_rows_without_a_value_come_last_and_published_rows_move_along(browse):
    driver = browse()
    headers = driver.find_elements(By.CSS_SELECTOR, ".comparison")[0].find_elements(
        By.TAG_NAME, "th"
    )
    elbo = next(h for h in headers if h.text.startswith("−ELBO"))
    for _ in range(2):
        elbo.find_element(By.TAG_NAME, "button").click()
        assert column(driver, headers.index(elbo))[-1] is None, "plain has no ELBO"
        published = driver.find_element(By.CSS_SELECTOR, ".published")
        body = published.find_element(By.XPATH, "..")
        assert body.text.startswith("k-tied-2")


def test_tab_reaches_header_buttons_and_the_skip_link_comes_first(browse):
    driver = browse()
    body = driver.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert driver.switch_to.active_element.text == "Skip to the results"
    assert driver.switch_to.active_element.rect["y"] >= 0, "visible when it has the focus"
    reached = []
    for _ in range(12):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        now = driver.switch_to.active_element
        reached.append((now.tag_name, now.find_element(By.XPATH, "..").get_attribute("aria-sort")))
    assert ("button", "none") in reached
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert driver.execute_script(outline) == "solid"


@pytest.mark.parametrize("name", ["usual", "study", "hostile"])
def test_no_sideways_scrolling_on_a_phone(browse, name):
    driver = browse(name, width=375)
    scroll_through(driver)
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


def test_dark_mode_changes_page_and_figures(browse):
    driver = browse(scheme="light")
    wait(lambda: driver.execute_script("return !!document.querySelector('.figure .xtick text')"))
    light = colours(driver)
    assert loudness(light[0]) > 600 > 200 > loudness(light[1])
    emulate(driver, "dark")
    wait(lambda: colours(driver)[1] != light[1])
    dark = colours(driver)
    assert loudness(dark[0]) < 200 < 600 < loudness(dark[1])
    assert dark[2] != light[2]
    driver = browse(scheme="dark")
    wait(lambda: driver.execute_script("return !!document.querySelector('.figure .xtick text')"))
    assert colours(driver) == dark, "the same when it starts dark"


def test_legend_hides_and_shows_a_variant(browse):
    driver = browse()
    scroll_through(driver)
    count = """return document.querySelector("#quality-fashion-mnist .figure")
        .querySelectorAll(".scatterlayer .trace").length"""
    button = driver.find_element(By.CSS_SELECTOR, "#quality-fashion-mnist > .legend button")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    before = driver.execute_script(count)
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-pressed") == "false"
    assert wait(lambda: driver.execute_script(count) < before)
    button.click()
    assert wait(lambda: driver.execute_script(count) == before)


def test_hostile_names_are_text_and_nothing_runs(browse):
    driver = browse("hostile")
    scroll_through(driver)  # an open alert would raise UnexpectedAlertPresentException
    text = driver.find_element(By.TAG_NAME, "body").text
    assert text.count(samples.HOSTILE) > 5
    assert all(name in text for name in NAMES)
    assert driver.find_elements(By.CSS_SELECTOR, "img[src=x]") == []
    hover = """const plot = document.querySelector(".figure .plot");
        Plotly.Fx.hover(plot, [{curveNumber: arguments[0], pointNumber: 3}]);
        return plot.querySelector(".hoverlayer").textContent"""
    for number, name in enumerate(NAMES):
        assert wait(lambda n=number, name=name: name in driver.execute_script(hover, n)), name


def test_paper_is_white_even_in_dark_mode(browse):
    driver = browse(scheme="dark")
    wait(lambda: driver.execute_script("return !!document.querySelector('.figure .xtick text')"))
    driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert wait(lambda: loudness(colours(driver)[0]) > 600 and loudness(colours(driver)[1]) < 200)
    driver.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert wait(lambda: loudness(colours(driver)[0]) < 200)
