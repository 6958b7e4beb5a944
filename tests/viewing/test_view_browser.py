"""The page in headless Chromium, opened as a file: what a user sees and does."""

import threading
from pathlib import Path
from urllib.parse import quote

import pytest
from pages import HOSTILE, SCENE, content_of, index_of

from vla_nav.viewing.serve import make_server

pytestmark = pytest.mark.browser


def address(page: Path, **fragment: object) -> str:
    """The page as file://, at a deep link."""
    parts = "&".join(f"{key}={quote(str(value))}" for key, value in fragment.items())
    return f"{page.as_uri()}#{parts}" if parts else page.as_uri()


def ready(browser, number: int) -> None:
    browser.wait(f"document.getElementById('main').dataset.ready === '{number}'")


def loud(browser) -> list[str]:
    """Console messages that are errors or refusals."""
    return [line for line in browser.log() if "favicon" not in line]


def test_hostile_text_is_shown_as_text_and_nothing_of_it_runs(browser, data_page):
    browser.open(address(data_page, episode="r2r_ce/val//1", step=2))
    ready(browser, 0)
    assert browser.text("#instruction") == HOSTILE
    assert SCENE in browser.text("#key")
    assert HOSTILE[:40] in browser.text("#list li")
    assert browser.run("return document.querySelectorAll('b, svg, script').length > 0")
    inside = "#list script, #list img, #list svg, #instruction *, #key *, #overview img"
    assert browser.run("return document.querySelectorAll(arguments[0]).length", inside) == 0
    assert "owned" not in browser.run("return document.title")
    assert loud(browser) == []  # an alert would have made the driver fail before


def test_a_deep_link_opens_episode_row_and_step(browser, run_page):
    line = index_of(run_page)["episodes"][2]
    browser.open(address(run_page, episode=line["key"], row="expert", step=5))
    ready(browser, 2)
    assert browser.text("#where") == f"step 5 of {line['rows']['expert']['steps']}"
    assert browser.run("return document.getElementById('row').value") == "expert"
    assert browser.text("#instruction") == content_of(run_page, 2)["instruction"]
    assert browser.run("return document.querySelectorAll('#list .current').length") == 1
    assert loud(browser) == []


def test_a_link_to_nothing_says_so(browser, run_page):
    browser.open(address(run_page, episode="no/such//episode"))
    assert "No episode no/such//episode" in browser.wait(
        "document.getElementById('notice').textContent"
    )


def test_frames_and_maps_are_loaded_and_follow_the_step(browser, run_page):
    content = content_of(run_page, 0)
    browser.open(address(run_page, episode=content["key"], row="expert", step=0))
    ready(browser, 0)
    track = next(track for track in content["tracks"] if track["name"] == "expert")
    for step in (0, len(track["actions"]) - 1):
        browser.press("home" if step == 0 else "end")
        if step:
            browser.press("left")
        image = "document.querySelector('#frames img')"
        browser.wait(f"{image}.complete && {image}.naturalWidth === 16")
        assert browser.run(f"return {image}.getAttribute('src')") == track["frames"][step]["front"]
        where = browser.run(
            "return document.querySelector('.agent path').getAttribute('transform')"
        )
        x, _, z, _ = track["spots"][step]
        assert where.startswith(f"translate({x:g} {z:g})")
    images = "[...document.querySelectorAll('#maps image')]"
    assert browser.run(f"return {images}.length") == 2


def test_case_19_a_goal_on_another_floor_is_on_its_floors_map(browser, data_page, run_page):
    for page, number in ((data_page, 0), *((run_page, n) for n in range(4))):
        content = content_of(page, number)
        browser.open(address(page, episode=content["key"]))
        ready(browser, number)
        heights = [floor["height"] for floor in content["floors"]]
        goal = min(range(2), key=lambda at: abs(heights[at] - content["goals"][0][1]))
        start = min(range(2), key=lambda at: abs(heights[at] - content["start"][1]))
        for at in range(2):
            marks = browser.run(
                "const f = document.querySelector(`[data-floor='${arguments[0]}']`);"
                "return ['.goal', '.start', '.agent path'].map((s) => !!f.querySelector(s))",
                at,
            )
            assert marks == [at == goal, at == start, at == start]


def test_keys_step_play_and_change_episode_and_the_address_follows(browser, data_page):
    browser.open(address(data_page, episode="1", step=0))
    ready(browser, 0)
    browser.press("right")
    browser.press("right")
    browser.press("left")
    assert browser.text("#where") == "step 1 of 17"
    assert browser.run("return location.hash").endswith("step=1")
    browser.press("end")
    assert browser.text("#where") == "end of 17 steps"
    browser.press("down")
    ready(browser, 1)
    assert "episode=r2r_ce/val//2" in browser.run("return location.hash")
    browser.run("history.back()")
    ready(browser, 0)
    browser.press("home")
    browser.press(" ")
    browser.wait("document.getElementById('where').textContent.startsWith('step 2 ')")
    browser.press(" ")
    browser.press("escape")
    assert browser.run("return document.getElementById('episode').hidden")


def test_filters_and_search_leave_what_they_name(browser, data_page):
    browser.open(address(data_page))
    browser.wait("document.querySelectorAll('#list li').length > 0")
    assert browser.text("#count") == "60 of 60 episodes"
    browser.click("[data-flag='early stop']")
    assert browser.text("#count") == "20 of 60 episodes"
    assert "filter=early%20stop" in browser.run("return location.hash")
    browser.click("[data-flag='early stop']")
    browser.click("[data-flag='stuck']")
    assert browser.text("#count") == "20 of 60 episodes"
    browser.press("/")
    for letter in "KITCHEN </B>":
        browser.press(letter)
    assert browser.text("#count") == "20 of 60 episodes"
    for letter in " 21":
        browser.press(letter)
    assert browser.text("#count") == "1 of 60 episodes"
    browser.open(browser.run("return location.href"))
    browser.wait("document.querySelectorAll('#list li').length > 0")
    assert browser.text("#count") == "1 of 60 episodes"


def test_the_list_grows_as_it_is_scrolled(browser, data_page):
    browser.open(address(data_page))
    count = "document.querySelectorAll('#list li').length"
    assert 10 < browser.wait(count) < 60
    browser.run("const l = document.getElementById('list'); l.scrollTop = l.scrollHeight")
    browser.wait(f"{count} === 60")


def test_another_row_shows_its_own_actions_beside_what_the_expert_would_do(browser, run_page):
    content = content_of(run_page, 0)
    browser.open(address(run_page, episode=content["key"], row="random"))
    ready(browser, 0)
    num_differing = {
        track["name"]: sum(
            bool(label) and done[:1] != label[0][:1]
            for done, label in zip(track["actions"], track["labels"], strict=True)
        )
        for track in content["tracks"]
    }
    assert num_differing["random"] > num_differing["expert"]
    script = "return document.querySelectorAll('.ribbons .differs').length"
    assert browser.run(script) == num_differing["random"]
    browser.press("r")
    assert browser.run("return document.getElementById('row').value") == "expert"
    assert browser.run(script) == num_differing["expert"]


def test_a_damaged_episode_file_is_one_sentence(browser, run_page):
    file = run_page.parent / "data/episodes/000001.js"
    before = file.read_text()
    file.write_text(before[:200])
    try:
        browser.open(address(run_page, episode=index_of(run_page)["episodes"][1]["key"]))
        said = browser.wait("document.getElementById('notice').textContent")
        assert said == "data/episodes/000001.js is missing or damaged; run vla-nav view again"
    finally:
        file.write_text(before)


def test_the_same_folder_works_from_the_loopback_server(browser, run_page):
    with make_server(run_page.parent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        key = index_of(run_page)["episodes"][0]["key"]
        port = server.server_address[1]
        browser.open(f"http://127.0.0.1:{port}/#episode={quote(key)}&step=1")
        ready(browser, 0)
        image = "document.querySelector('#frames img')"
        browser.wait(f"{image}.complete && {image}.naturalWidth === 16")
        server.shutdown()


def test_no_address_of_the_network_is_in_the_page(run_page):
    root = run_page.parent
    texts = {file: file.read_text() for file in (root / "page").iterdir()}
    texts[run_page] = run_page.read_text()
    for file, text in texts.items():
        assert "https:" not in text, file
        assert "http:" not in text.replace("http://www.w3.org/2000/svg", ""), file
