"""The page of the instruction set is what its definition says."""

from hw.instruction_page import PAGE, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run `make docs`"
