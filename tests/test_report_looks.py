"""The page in a real browser: themes, narrow screens, hostile names, its policy, missing parts."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from report_pages import HOSTILE, SIZE, card_rows, contrast, luminance, make_payload, status

import hardsight as hs
from hardsight import SampleTable
from hardsight.report.page import render
from hardsight.report.write import nothing_yet

pytestmark = pytest.mark.slow  # a browser is the same whatever versions of Python packages there are


TEXT_ON = {
    "ink": ("page", "surface", "sunken"),
    "soft": ("page", "surface", "sunken"),
    "accent": ("page", "surface"),
    "wrong-ink": ("surface",),
    "warn-ink": ("warn",),
    "info-ink": ("info",),
    "page": ("ink",),
}


@pytest.mark.parametrize("preferred", ["light", "dark"])
def test_both_themes_are_readable_and_can_be_changed(show, preferred):
    page = show(make_payload(), color_scheme=preferred)
    found = []
    for _ in range(2):
        names = {*TEXT_ON, *sum(TEXT_ON.values(), ()), "right", "wrong"}
        colours = {name: luminance(page, name) for name in names}
        for text, grounds in TEXT_ON.items():
            for ground in grounds:
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for mark in ("right", "wrong"):  # graphics need 3
            assert contrast(colours[mark], colours["surface"]) >= 3
        drawn = page.evaluate("document.getElementById('plot-base').toDataURL()")
        found.append((page.evaluate("getComputedStyle(document.body).backgroundColor"), drawn))
        light = colours["page"] > 0.5
        assert light == ((preferred == "light") == (len(found) == 1))
        page.get_by_test_id("theme").click()
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


@pytest.mark.parametrize("names", [("ant", "bee"), ("W" * 60, "a long name " * 5), tuple(HOSTILE)])
def test_a_narrow_screen_does_not_scroll_sideways(show, names):
    page = show(make_payload(names=names, title="W" * 80), viewport={"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.get_by_test_id("card").first.click()
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= 400
    page.keyboard.press("Escape")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_hostile_names_are_text(show):
    payload = make_payload(names=HOSTILE, title=HOSTILE[0])
    payload["points"]["id"] = [f"{i} {HOSTILE[i % len(HOSTILE)]}" for i in range(400)]
    payload["points"]["groups"] = {"__proto__": [i % 10 for i in range(400)]}
    payload["groups"]["values"] = {"__proto__": HOSTILE}
    group = payload["groups"]["tables"][0]
    group |= {"group": "__proto__", "title": HOSTILE[1], "rows": [[name, *group["rows"][0][1:]] for name in HOSTILE]}
    payload["bad"]["tables"][0]["rows"] = [[name, name] for name in HOSTILE]
    payload["made"] = [[name, name] for name in HOSTILE]
    payload["notices"] = [{"level": "warn", "text": name} for name in HOSTILE]
    payload["label_errors"]["command"] = HOSTILE[0]
    for part in (*payload["lists"], *payload["views"], payload["class_table"], payload["clusters"]):
        part["note"] = HOSTILE[1]
    page = show(payload)
    assert page.title().startswith("</script><script>window.pwned=1</script>")
    assert page.get_by_test_id("next-command").inner_text() == HOSTILE[0]
    page.get_by_test_id("tab-all").click()
    for k in range(6):
        page.get_by_test_id("card").nth(k).click()
        page.keyboard.press("Escape")
    shown = page.get_by_test_id("cards").inner_text()
    assert "__proto__" in shown
    table = page.get_by_test_id("class-table").inner_text()
    shown = (r"שלום \u202etxt.exe\u202c", r"tab\x09here \x1b[31m")
    assert all(text in table for text in (*HOSTILE[:2], "__proto__", "constructor", *shown))
    page.get_by_test_id("group-table").get_by_role("button", name="__proto__", exact=True).last.click()
    assert status(page).split(" have")[0].endswith("of 40 samples")
    assert page.evaluate("[window.pwned, {}.polluted, Object.keys(Object.prototype).length]") == [None, None, 0]
    assert page.locator("script").count() == 2
    assert page.locator("style").count() == 1
    page.screenshot()


def test_the_policy_stops_what_is_injected(show):
    page = show(make_payload())
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.pwned = 1";
        document.body.append(script);
        document.body.setAttribute("style", "display: none");
        return fetch("https://example.invalid/").catch(() => null);
    }""")
    assert page.evaluate("window.pwned") is None
    assert page.get_by_test_id("cards").is_visible()
    assert len(page.messages) >= 3
    assert all("Content Security Policy" in message for message in page.messages)
    page.messages.clear()


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_file_is_whole_and_its_policy_names_its_own_script():
    html = render(make_payload(names=HOSTILE))
    parser = _Tags()
    parser.feed(html)
    html.encode()  # half a surrogate pair is no obstacle
    policy = next(a["content"] for tag, a in parser.found if a.get("http-equiv") == "Content-Security-Policy")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert len(text) == 1
        digest = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not any(word in html.split("<script>")[1] for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval("))
    attributes = {name for _, held in parser.found for name in held}
    assert not [name for name in attributes if name == "style" or name.startswith("on")]
    assert all(
        held[key].startswith(("#", "data:")) for _, held in parser.found for key in ("href", "src") if key in held
    )
    data = re.search(r'<script type="application/json" id="payload">(.*?)</script>', html, re.DOTALL)[1]
    assert not set(data) & set("<>&\u2028\u2029")
    assert list(json.loads(data)["classes"].values())[:9] == HOSTILE[:9]


def test_nan_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        render(make_payload(n=2) | {"n": float("nan")})


def test_a_run_without_scored_samples_has_a_page_without_script():
    table = SampleTable.from_columns({"id": np.empty(0, str)})
    page = render(nothing_yet(table))
    assert len(page.split("<script>")[1]) < 99
    assert page.count("<section") == 1
    assert nothing_yet(table)["notices"][0]["text"] in page


REDUCED = {
    "no pictures": make_payload(pictures=[], points=make_payload()["points"] | {"picture": [-1] * 400}),
    "no views": make_payload(views=[]),
    "one class": make_payload(names=["only"]),
    "one sample": make_payload(n=1),
    "empty parts": make_payload(lists=[], by_class={}, histograms=None, groups={"values": {}}, comparison=None,
                                clusters={"note": "", "rows": []}, label_errors=None, made=[], tiles=[]),
}  # fmt: skip


@pytest.mark.parametrize("case", REDUCED)
def test_missing_parts_leave_a_page(show, case):
    page = show(REDUCED[case])
    assert page.get_by_role("heading", level=1).is_visible()
    if case == "no pictures":
        assert status(page).startswith("0 of 100 samples")
        assert page.locator("img").count() == 0
    if case == "empty parts":
        assert card_rows(page)


def test_without_labels_nothing_is_right_or_wrong(show):
    payload = make_payload(labeled=False, label_errors=None)
    payload["points"]["label"] = [-1] * 400
    page = show(payload)
    assert "labeled" not in page.get_by_test_id("cards").inner_text()
    assert page.get_by_test_id("wrong-filter").count() == 0
    assert page.locator("#legend").inner_text().startswith("a sample (400 drawn)")
    page.get_by_test_id("choose-class").select_option(label="bee")
    page.get_by_test_id("tab-all").click()
    assert status(page).split(" have")[0].endswith(f"of {payload['points']['pred'].count(1)} samples")


def test_the_first_screen_says_what_it_is(show):
    page = show(make_payload())
    assert page.get_by_test_id("sampling").inner_text().replace("\n", " ") == "Out of sample (5 folds)."
    assert page.get_by_test_id("notices").locator("li").all_inner_texts() == [
        "!\nOne to beware of.",
        "i\nOne thing to know.",
    ]
    assert f"Made by hardsight {hs.__version__}" in page.locator("footer").inner_text()
    assert "▲ harder" in page.get_by_test_id("group-table").inner_text()
    assert re.search("9 samples .*ant, .*dog", page.get_by_test_id("clusters").inner_text())
    assert "▼ easier" in page.get_by_test_id("comparison").inner_text()
    assert page.get_by_test_id("histogram-avh").locator("path.area").count() == 4  # two series, two swatches
    top = page.get_by_test_id("cards").bounding_box()["y"]
    assert top < SIZE["height"]


def test_without_script_the_page_says_so(browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(render(make_payload()), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert "switched off" in page.locator("header").inner_text()
    assert "98.1%" in page.locator("header").inner_text()
    assert page.get_by_test_id("next-command").inner_text() == "hardsight clean run"
    assert page.get_by_test_id("class-table").locator("tbody tr").count() == 4
    assert page.get_by_test_id("bad-table").locator("td").all_inner_texts() == ["test/broken.png", "truncated"]
    change = page.get_by_test_id("comparison-table").locator("td").all_inner_texts()
    assert change == ["ant", "−0.100\n−0.200 to −0.050", "▼ easier"]
    context.close()


HIDDEN = (
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\ufeff\u2028\u2029\x00\x07\x1b\x7f\x9f"
)


@pytest.mark.parametrize("character", HIDDEN)
def test_what_the_template_writes_cannot_be_reordered(character):
    """A name that ends in .exe must not read as if it ended in .jpg: such characters are shown as escapes."""
    name = f"photo{character}gpj.exe"
    payload = make_payload(names=[name, "b"], title=name)
    payload["made"] = [[name, name]]
    payload["notices"] = [{"level": "warn", "text": name}]
    payload["scores"]["avh"] |= {"title": name, "text": name}
    page = render(payload)
    start = page.index('id="payload">')
    written = page[:start] + page[page.index("</script>", start) :]  # the rest is data, which scripts make visible
    assert character not in written
    escape = character.encode("unicode_escape").decode()
    assert written.count(f"photo{escape}gpj.exe") >= 4


def test_no_class_name_breaks_inside_a_word(show):
    names = ("Staffordshire bullterrier", "electrocardiograph-like apparatus", "W" * 60, "ant")
    for width in (400, 700, 1200):
        page = show(make_payload(names=names), viewport={"width": width, "height": 800})
        pieces = page.evaluate("""() => [...document.querySelectorAll(".card .line bdi")].flatMap((name) => {
            const text = name.firstChild;
            return [...text.data.matchAll(/\\S+/g)].map((word) => {
                const range = document.createRange();
                range.setStart(text, word.index);
                range.setEnd(text, word.index + word[0].length);
                return word[0].includes("-") ? 1 : new Set([...range.getClientRects()].map(({ top }) => top)).size;
            });
        })""")
        assert set(pieces) == {1}


def test_the_gallery_scrolls_within_the_screen(show):
    page = show(make_payload(), viewport={"width": 1400, "height": 900})
    assert len(card_rows(page)) == 48
    assert page.locator("#samples").bounding_box()["height"] < 1200
    last = page.get_by_test_id("card").last
    last.focus()
    assert last.is_visible()
    assert page.get_by_test_id("cards").evaluate("(node) => node.scrollTop") > 0


def test_navigation_and_headings_use_the_same_words(show):
    page = show(make_payload())
    links = {link.inner_text(): link.get_attribute("href") for link in page.locator("nav a").all()}
    for text, target in links.items():
        assert page.locator(f"{target} h2").first.inner_text() == text
