"""Web pages: what surrounds the text goes where it is the larger part; elsewhere nothing of the text is lost."""

from __future__ import annotations

from unittest import mock

import pytest

from perdure.pipelines.extract import around, extract, open_reader
from perdure.pipelines.extract.around import look_around
from perdure.pipelines.extract.markup import parse_html
from perdure.pipelines.extract.part import count_words

STORY = " ".join(f"Sentence number {number} tells about the matter at hand." for number in range(60))
LINKS = "".join(
    f"<li><a href='/{n}'>Another story that has nothing to do with it {n}</a></li>" for n in range(200)
)


def text_of(page: str) -> str:
    return "\n".join(part.text for part in extract(page.encode(), name="page.html"))


def test_a_page_keeps_its_text_and_loses_what_surrounds_it() -> None:
    page = (
        f"<html lang=en><title>The matter</title><body><nav>Home</nav><div class=menu><ul>{LINKS}</ul></div>"
        f"<article><h1>The matter</h1><p>{STORY}</p></article><footer>Imprint</footer></body></html>"
    )
    with open_reader(page.encode()) as reader:
        assert (reader.title, reader.language) == ("The matter", "en")
    whole = text_of(page)
    assert "Sentence number 59" in whole
    assert "Another story" not in whole
    assert "Imprint" not in whole


def test_a_text_that_stands_in_the_header_is_the_text() -> None:
    header = f"<header><h1>It</h1><p>{STORY}</p></header>"
    page = f"<body>{header}<main><p>Read it above.</p></main><footer>Imprint</footer></body>"
    whole = text_of(page)
    assert "Sentence number 59" in whole
    assert "Imprint" not in whole


def test_lines_around_an_article_of_a_site_go() -> None:
    share = "".join(
        f"<div class=share-button>Share on {name}</div>" for name in ("one", "two", "three", "four")
    )
    tags = "<div class=post-tags>Tagged: fog</div><div class=author-box>About the author</div>"
    list_ = "<ul><li>a short item</li><li>another item</li></ul><pre>x = 1</pre>"
    more = "".join(
        f"<div class=related-post><a href='https://e.org/{n}'>Read more {n}</a></div>" for n in range(6)
    )
    page = (
        f"<body><div class=logo>A site</div>{share}<article><h1>The matter</h1><p>{STORY}</p><h2>Code</h2>{list_}"
        f"<p>{STORY}</p></article>{tags}{more}</body>"
    )
    whole = text_of(page)
    assert "Sentence number 59" in whole
    assert [word for word in ("x = 1", "## Code") if word not in whole] == []
    assert [word for word in ("Share on", "Tagged", "About the author", "Read more") if word in whole] == []


def test_a_mark_does_not_cut_a_word_apart() -> None:
    page = "<p><b>I</b>nfluenza, un<i>believ</i>able, a <b>bold</b> word and <code>f</code>s</p>"
    assert text_of(page) == "Influenza, unbelievable, a **bold** word and `f`s"


def test_comments_are_not_the_text_even_where_they_are_longer() -> None:
    said = "".join(
        f"<div class=comment><p>{'I have an opinion on this too. ' * 9}</p></div>" for _ in range(40)
    )
    page = f"<body class=has-sidebar><article><h1>It</h1><p>{STORY}</p></article><div id=comments>{said}</div></body>"
    whole = text_of(page)
    assert "Sentence number 59" in whole
    assert "an opinion" not in whole


def test_ideographs_count_alike_in_a_text_and_around_it() -> None:
    story = "".join(f"这是关于主要事情的第{number}句话，内容很长而且有意义。" for number in range(60))
    links = "".join(f"<li><a href='/{n}'>与此无关的另一个故事标题{n}</a></li>" for n in range(200))
    whole = text_of(
        f"<body><div class=menu><ul>{links}</ul></div><article><h1>它</h1><p>{story}</p></article></body>"
    )
    assert "第59句话" in whole
    assert "无关" not in whole


def test_all_answers_to_a_question_are_its_text() -> None:
    posts = "".join(
        f"<div class={kind}><div class=js-post-body><p>{kind}: {STORY}</p><p>{STORY}</p></div></div>"
        for kind in ("question", "first-answer", "second-answer", "third-answer")
    )
    whole = text_of(f"<body><div id=content>{posts}</div><div id=sidebar>{LINKS}{LINKS}</div></body>")
    assert [kind in whole for kind in ("question:", "first-answer:", "third-answer:")] == [True] * 3


@pytest.mark.parametrize("depth", [100, 1_500])
def test_text_that_lies_deep_is_kept(depth: int) -> None:
    deep = f"{'<div>' * depth}<p>Down there. {STORY}</p>{'</div>' * depth}"
    whole = text_of(f"<body><div class=menu>{LINKS}</div><article><p>{STORY}</p>{deep}</article></body>")
    assert "Down there." in whole
    assert "Another story" not in whole


def test_what_is_never_read_surrounds_nothing() -> None:
    manual = f"<h1>It</h1><p>{STORY}</p><table><tr><td>{STORY}</td></tr></table><pre>make it so</pre>"
    slot = f"<div class=ad-slot><script>{'show ( it ) ; ' * 60}</script></div>"
    contents = f"<nav>{LINKS}</nav>"
    assert text_of(f"<body>{contents}{slot * 5}{manual}</body>") == text_of(f"<body>{manual}</body>")


def test_an_article_that_only_a_script_holds_is_found() -> None:
    data = f'<script type="application/ld+json">{{"@type": "NewsArticle", "articleBody": "{STORY}"}}</script>'
    whole = text_of(f"<head>{data}</head><body><div class=menu>{LINKS}</div><div id=app></div></body>")
    assert "Sentence number 59" in whole
    assert "Another story" not in whole


def test_what_surrounds_a_page_is_not_what_surrounds_an_article() -> None:
    page = (
        "<body><header>Site</header><form><article><header><h1>The title</h1></header><p>Text.</p>"
        "<aside>A note.</aside></article></form><aside>Advertising</aside><footer>Imprint</footer></body>"
    )
    assert text_of(page) == "# The title\n\nText.\n\nA note."


@pytest.mark.parametrize(
    ("page", "words_around"),
    [
        ("<p>a b c d e f", 0),
        ("<p>a b c d <a href=/>e f</a>", 2),
        ("<p>a b c d <a name=x>e f</a>", 0),
        ("<nav>a b</nav><p>c d e f", 0),  # is left out of every page
        ("<div role=banner>a b</div><div role=main>c d e f</div>", 0),
        ("<aside>a b</aside><article><aside>c d</aside>e f g h</article>", 2),
        ("<ul class=site-menu><li>a<li>b</ul><p>c d e f", 2),
        ("<ul id=breadcrumbs><li>a<li>b</ul><p>c d e f", 2),
        ("<h2 id=next-comment>a b</h2><p>c d e f", 0),  # an id made of its title
        ("<div id=Standard-Widgets>a b</div><p>c d e f", 0),
        ("<div id=Sidebar>a b</div><p>c d e f", 2),
        ("<div id=bugs-and-comments><h2>Bugs and comments</h2>a b</div><p>c d e f g h", 0),
        ("<section id=menus><h2>Menus</h2>a b</section><p>c d e f", 0),
        ("<div id=comments><h2>Comments</h2>a b</div><p>c d e f", 3),
        ("<div style='display: none'>a b</div><p>c d e f", 2),
        ("<div aria-hidden=true>a b</div><p>c d e f", 2),
        ("<div class=menu>首页</div><p>文档处理", 2),
        # more than half: not around anything
        ("<div class=has-sidebar><p>a b c d e <a href=/>f</a></div>", 1),
        ("<head><title>a b</title></head><script>a b c</script><p>c d", 0),
        ("<p>read the address <span class=address>c d</span>", 0),
        ("<div class='box ad'>a b</div><p>c d e f", 2),
    ],
)
def test_what_may_surround(page: str, words_around: int) -> None:
    root = parse_html(page)
    words = count_words(" ".join(map(str, root.itertext())))
    assert look_around(root, words).words == words_around


def test_of_a_thousand_frames_in_each_other_only_a_few_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = mock.Mock(wraps=around._words_in)
    monkeypatch.setattr(around, "_words_in", counted)
    root = parse_html("<div class=head>" * 1_000 + "word " * 500 + "</div>" * 1_000)
    assert look_around(root, 500).words == 500
    assert counted.call_count == 9


def test_a_page_that_is_all_navigation() -> None:
    (part,) = extract(b"<html><body><nav>All there is</nav></body></html>", name="page.html")
    assert part.text == "All there is"


NEWS = (
    "<div class='cookie-banner'>We use cookies.</div><div id=siteNav><a href=/>Home</a> and away</div>"
    "<div class=article><h1>Tidal mill restored</h1><p>{story}</p><h2>Opening hours</h2><table><tr><td>May<td>9-5"
    "</table><pre>x = 1</pre></div>"
    "<div class=comments>{comments}</div><div class='related stories'>Bridge closed</div><div class=footer>Terms.</div>"
)


@pytest.mark.parametrize("comments", [0, 3, 15])
def test_what_says_that_it_surrounds_goes_and_headings_stay(comments: int) -> None:
    said = "".join(f"<div><b>Ann {n}</b><p>{'I was there. ' * 9}</p></div>" for n in range(comments))
    whole = text_of(f"<body class='page has-sidebar'>{NEWS.format(story=STORY, comments=said)}</body>")
    for kept in (
        "# Tidal mill restored",
        "Sentence number 59",
        "## Opening hours",
        "| May | 9-5 |",
        "```\nx = 1",
    ):
        assert kept in whole
    for gone in ("cookies", "Home", "Bridge closed", "Terms."):
        assert gone not in whole
    assert ("I was there" in whole) == (comments == 3)  # a few are kept, in a forum they are the text


def test_a_thread_of_comments_is_not_lost_to_its_name() -> None:
    thread = "".join(f"<div class='timeline comment'><p>Reply {n}: {STORY[:200]}</p></div>" for n in range(9))
    whole = text_of(f"<body><h1>It fails</h1><p>{STORY[:400]}</p><div class=thread>{thread}</div></body>")
    assert all(f"Reply {n}:" in whole for n in range(9))


def test_code_keeps_its_comments_and_a_page_its_title() -> None:
    page = f"<div class=page-header-menu><h1>Title</h1></div><p>{STORY}</p><pre><span class=comment># why</span></pre>"
    assert "# Title" in text_of(page)
    assert "# why" in text_of(page)
