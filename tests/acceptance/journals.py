"""Files to which processes append lines, read meanwhile or after they were killed."""


def whole_lines(path):
    """The lines of such a file, as text; none while there is no file.

    What follows the last line feed is left out: readers see a write page by page, and a kill may end it
    between two pages.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()
