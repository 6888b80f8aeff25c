"""A page of a site keeps the text beside its article, or says that text is missing."""

from __future__ import annotations

import pytest

from perdure.pipelines.extract import Summary, open_reader, page, summarise
from perdure.pipelines.extract.trim import trim

AROUND = "logo menu share-bar social-links newsletter author-box breadcrumb sidebar-note login".split()
NAMED = "".join(f'<div class="{name}">{name}</div>' for name in AROUND)


def words(count: int, begin: int) -> str:
    return " ".join(f"w{number}" for number in range(begin, begin + count))


ARTICLE = "".join(f"<p>Paragraph {number} {words(60, 100 * number)}.</p>" for number in range(4))
BESIDE = {
    "ul": "<ul>" + "".join(f"<li>{words(25, 1_000 + 30 * n)}</li>" for n in range(40)) + "</ul>",
    "dl": "<dl>"
    + "".join(f"<dt>Term {n}</dt><dd>{words(25, 1_000 + 30 * n)}</dd>" for n in range(40))
    + "</dl>",
    "details": "".join(
        f"<details><summary>Ask {n}</summary><p>{words(35, 1_000 + 40 * n)}</p></details>" for n in range(40)
    ),
    "short dl": "<dl>"
    + "".join(f"<dt>T {n}</dt><dd>{words(8, 1_000 + 9 * n)}</dd>" for n in range(60))
    + "</dl>",
}


def read(page: str) -> tuple[str, Summary]:
    with open_reader(page.encode(), name="page.html") as reader:
        parts = [reader.read(key) for key in reader.parts]
    return "\n".join(part.text for part in parts), summarise(parts)


def site(beside: str, article: str = ARTICLE) -> str:
    return f"<html><body>{NAMED}<article><h1>The matter</h1>{article}</article>{beside}</body></html>"


@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("paragraphs", [4, 8, 16])
def test_text_beside_an_article_is_read_or_missed(beside: str, paragraphs: int) -> None:
    long = "".join(f"<p>Part {n} {words(60, 10_000 + 100 * n)}.</p>" for n in range(paragraphs))
    text, summary = read(site(beside, long))
    there = beside.count(" w") + beside.count(">w")
    found = sum(f"w{number}" in text.split() for number in range(1_000, 3_000))
    assert found >= 0.8 * there or there < 0.2 * (there + summary.words) or summary.partial


def test_a_list_of_prose_beside_an_article_is_read() -> None:
    long = "".join(f"<p>Part {n} {words(60, 10_000 + 100 * n)}.</p>" for n in range(30))
    text, summary = read(site(BESIDE["ul"], long))
    assert "w1000" in text.split()
    assert not summary.partial


def test_links_and_buttons_around_an_article_are_not_missed() -> None:
    links = "".join(f"<div><a href='https://e.org/{n}'>{words(9, 5_000 + n)}</a></div>" for n in range(20))
    text, summary = read(site(f"{links}<div>Print</div><div>Read it aloud</div>"))
    assert "w5001" not in text.split()
    assert not summary.partial


MAIN = "\n\n".join(f"Part {n} {words(60, 10_000 + 100 * n)}." for n in range(30))


def test_a_list_of_prose_outside_the_main_text_stays() -> None:
    items = [f"- {words(25, 1_000 + 30 * n)}" for n in range(3)]
    assert trim("\n\n".join([MAIN, "\n".join(items)]), MAIN).endswith("\n".join(items))
    assert trim("\n\n".join([MAIN, "\n".join(items[:2])]), MAIN) == MAIN
    linked = [f"- [{words(25, 1_000 + 30 * n)}](https://e.org)" for n in range(3)]
    assert trim("\n\n".join([MAIN, "\n".join(linked)]), MAIN) == MAIN


def test_a_page_that_loses_a_third_of_its_own_text_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes only the article for the main text."""
    monkeypatch.setattr(page, "_main_text", lambda root, *, comments=False: MAIN)
    article = "".join(f"<p>{line}</p>" for line in MAIN.split("\n\n"))
    text, summary = read(site(BESIDE["dl"], article))
    assert "w1000" not in text.split()
    assert "words of the source" in summary.partial
