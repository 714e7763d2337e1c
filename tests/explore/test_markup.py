"""Text never becomes markup, whatever it holds."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from tierwall.explore.markup import Markup, joined, raw_text, spoken, tag


class Reader(HTMLParser):
    """Reads HTML as a browser does, as far as these tests need it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text())
def test_any_text_stays_text_in_content_and_in_attributes(text: str) -> None:
    read = Reader(tag("p", text, title=text, data_name=text))
    (name, attributes), *inner = read.tags
    assert name == "p"
    assert set(attributes) == {"title", "data-name"}
    assert [given_name for given_name, _ in inner] == ["span"] * len(inner)
    assert all(given_name == {"class": "mark"} for _, given_name in inner)
    assert read.text.isprintable()
    if text.isprintable():
        assert read.text == text
        assert attributes["title"] == text


@given(st.text(alphabet=st.characters(exclude_characters="\r\x00", exclude_categories=["Cs"])))
def test_an_editor_keeps_what_it_was_given(text: str) -> None:
    read = Reader(tag("textarea", raw_text(text)))
    assert [name for name, _ in read.tags] == ["textarea"]
    assert read.text == "\n" + text


def test_marks_show_what_changes_the_direction_of_text() -> None:
    assert tag("b", "a\u202eb") == '<b>a<span class="mark">\\u202e</span>b</b>'


def test_children_may_be_nested_absent_and_numbers() -> None:
    assert joined(["a", None, [1200, Markup("<br>")]]) == "a1,200<br>"
    assert tag("input", value=0, hidden=True, checked=False, list=None) == '<input value="0" hidden>'


def test_what_stands_between_backticks_is_code_and_still_text() -> None:
    assert spoken("`<b>` may not get `pods`") == "<code>&lt;b&gt;</code> may not get <code>pods</code>"
    assert spoken("a ` alone, & more") == "a ` alone, &amp; more"
