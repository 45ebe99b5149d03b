"""The page of the wire format is what its definition says."""

from hw.link_page import PAGE, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run `make docs`"
