"""docs/guides.md goes through every line of the guides: code, list items, table rows and sentences."""

import re
from typing import NamedTuple

import pytest
from conftest import REPO, SHARED_DATA
from documents import rows

GUIDES = sorted((SHARED_DATA.parent / "guides").glob("*.txt"))
PAGE = REPO / "docs/guides.md"


class Row(NamedTuple):
    """A row of a guide's table: the lines of the guide that it is about, and what it quotes of them."""

    lines: set[int]
    quotes: list[str]


def plain(text: str) -> str:
    """Text without marks of emphasis, code and line ends, and with single spaces."""
    text = re.sub(r"\s*[\\^]$", "", text.strip())
    return re.sub(r"\s+", " ", text.replace("\\|", "|").replace("**", "").replace("`", "")).strip()


def section(page: str, number: int) -> str:
    found = re.search(rf"^## Guide {number}\b.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"docs/guides.md has no section '## Guide {number}'"
    return found[0]


def table(page: str, number: int) -> list[Row]:
    found = []
    for cells in rows(section(page, number)):
        spans = [span.split("-") for span in re.split(r",\s*", cells[0])]
        lines = {line for span in spans for line in range(int(span[0]), int(span[-1]) + 1)}
        found.append(
            Row(
                lines,
                [plain(quote) for quote in re.findall(r"(?<!`)`{1,2} ?((?:[^`]|(?<=`)`)+?) ?`{1,2}(?!`)", cells[1])],
            )
        )
    return found


def content(guide: str) -> tuple[dict[int, str], dict[int, str]]:
    """The lines of a guide that say something, by number: those of commands and settings, and the others.

    Not headings, among them words that only announce what follows, comments in code, and brackets.
    """
    code: dict[int, str] = {}
    words: dict[int, str] = {}
    lines, language = guide.splitlines(), ""
    for number, line in enumerate(lines, start=1):
        text = plain(line)
        if line.strip().startswith("```"):
            language = "" if language else line.strip().removeprefix("```") or "text"
        elif language and re.search(r"\w", text) and not re.match(r"#|//|@echo|call conda", text):
            text = re.sub(r"\s*#.*", "", re.sub(r"\s*(\[[^]]*\]|\.\.\.)$", "", text))
            (words if language in ("python", "json") else code)[number] = text
        elif not language and re.search(r"\w", text) and not line.startswith("#"):
            announces = re.search(r"[:\uff1a]$", text) or re.fullmatch(r"\s*\d+\. \*\*.*\*\*", line)
            heads_table = "|" in line and number < len(lines) and re.match(r"\|[-|]+$", lines[number])
            if not announces and not heads_table:
                words[number] = text
    return code, words


def options(guide: str) -> set[str]:
    """Options `--x`, environment variables and YAML keys that a guide names."""
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", guide))
    named |= set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", guide))
    yaml = "\n".join(re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL))
    return named | set(re.findall(r"^\s*(\w+):", yaml, re.MULTILINE))


def missing(guide: str, page: str, number: int) -> list[str]:
    """What a guide has and its section does not, and what this quotes that is not there.

    Every line must have a row; one of a command or a setting must be quoted, whole there or in part by a row about it.
    """
    code, words = content(guide)
    lines, table_rows, whole_page = guide.splitlines(), table(page, number), plain(page)
    covered = set().union(*(row.lines for row in table_rows))
    found = [f"line {line} has no row: {text}" for line, text in (code | words).items() if line not in covered]
    for line, text in code.items():
        quotes = [quote for row in table_rows if line in row.lines for quote in row.quotes]
        if text not in whole_page and not any(quote in text or text in quote for quote in quotes):
            found.append(f"line {line} is not quoted: {text}")
    for row in table_rows:
        text = plain(" ".join(plain(lines[line - 1]) for line in sorted(row.lines)))
        found += [f"not in lines {sorted(row.lines)}: {quote}" for quote in row.quotes if quote not in text]
        if not any(len(quote) >= 2 for quote in row.quotes):
            found.append(f"nothing is quoted of lines {sorted(row.lines)}")
    named = {word for cells in rows(page) if cells[0] == str(number) for word in re.findall(r"`([^`]+)`", cells[1])}
    return found + [name for name in sorted(options(guide)) if name not in section(page, number) and name not in named]


GUIDE = """# Title

Words of the guide:
- one remark
- `--flag` is another

```bash
# a comment
run --flag=1 \\
    --other 2  # why
```
"""
TABLE = """## Guide 0: a test

| line | the guide | here |
| --- | --- | --- |
| 4 | `one remark` | so |
| 5 | `is another` | `--flag` |
| 9-10 | `run --flag=1` | `x` |
| 10 | `--other 2` | |
"""


def test_what_is_missing_is_found():
    assert missing(GUIDE, TABLE, 0) == []
    for row in TABLE.splitlines()[4:]:
        assert missing(GUIDE, TABLE.replace(row + "\n", ""), 0), row
    assert missing(GUIDE, TABLE.replace("`one remark`", "`won remark`"), 0) == ["not in lines [4]: won remark"]
    assert missing(GUIDE, TABLE.replace("`one remark`", "one"), 0) == ["nothing is quoted of lines [4]"]
    assert missing(GUIDE + "\nUse `--more`", TABLE, 0) == ["line 13 has no row: Use --more", "--more"]


@pytest.fixture(params=range(len(GUIDES)) or [None])
def number(request) -> int:
    if request.param is None:
        pytest.skip(f"the guides are not in {SHARED_DATA.parent / 'guides'}")
    return request.param


def test_nothing_of_a_guide_is_missing(number):
    guide, page = GUIDES[number].read_text(encoding="utf-8"), PAGE.read_text(encoding="utf-8")
    assert missing(guide, page, number) == []


def test_a_deleted_row_is_noticed(number):
    """Each row but those about comments and announcements, and about lines that other rows quote again."""
    guide, page = GUIDES[number].read_text(encoding="utf-8"), PAGE.read_text(encoding="utf-8")
    code, words = content(guide)
    table_rows = table(page, number)
    found = [line for line in section(page, number).splitlines() if re.match(r"\| \d", line)]
    assert len(found) == len(table_rows)
    for line, row in zip(found, table_rows, strict=True):
        others = set().union(*(other.lines for other in table_rows if other is not row))
        alone = (row.lines & (code.keys() | words.keys())) - others
        if alone:
            assert missing(guide, page.replace(line + "\n", "", 1), number), line
