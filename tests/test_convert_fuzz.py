"""No value in an annotation file ends in a traceback: it is a fault that is named, or it does not matter."""

import contextlib
import copy
import json
from collections.abc import Iterator

import annotated_masks
import pytest
from test_convert import convert, drawn
from test_convert_damage import NAN, PICTURES, write

from support.errors import UserError

JUNK = [None, True, -1, 1e308, NAN, "", "text", [], {}, [[1]], [[[1, 2]]], {"a": 1}, 10**30, 3.7, ["12"]]
FILES = {
    "labelme": "bad.json",
    "coco": "instances.json",
    "labelstudio": "export.json",
    "supervisely": "ds0/ann/bad.png.json",
    "panoptic": "panoptic.json",
}


def places(content: object, path: tuple = ()) -> Iterator[tuple]:
    """Every key of every dict, and the first items of every list."""
    if path:
        yield path
    items = (
        content.items() if isinstance(content, dict) else enumerate(content[:2]) if isinstance(content, list) else ()
    )
    for key, value in items:
        yield from places(value, (*path, key))


@pytest.mark.parametrize("kind", FILES)
def test_junk_is_named_or_does_not_matter(tmp_path, kind):
    if kind == "panoptic":
        annotated_masks.write_panoptic(tmp_path / "in", PICTURES, drawn)
    else:
        write(tmp_path / "in", kind)
    file = tmp_path / "in" / FILES[kind]
    good = json.loads(file.read_text())
    source = file if kind in ("coco", "panoptic") else tmp_path / "in"
    for number, path in enumerate(places(good)):
        for junk in JUNK[number % 3 :: 3]:  # a third of them each
            content = copy.deepcopy(good)
            inner = content
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = junk
            file.write_text(json.dumps(content))
            with contextlib.suppress(UserError):
                assert convert(kind, source, tmp_path / f"out_{number}_{JUNK.index(junk)}") in (0, 1)
