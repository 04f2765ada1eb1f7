"""Read YAML files, which anyone may have written, within bounds of size, depth and number of values."""

from pathlib import Path
from typing import Any

import yaml

from support.errors import InputError, UserError
from support.files import read_text

MAX_BYTES, MAX_DEPTH, MAX_VALUES = 2**20, 50, 50_000
# What PyYAML raises on a value that its tag does not fit, such as !!binary "x".
BROKEN = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class _Loader(yaml.SafeLoader):
    """A loader that reads every value as text: 010 is "010", not 8, and no is "no", not False.

    Raises YAMLError beyond the bounds, and on a duplicate key, where SafeLoader keeps the last value. An alias counts
    as all values that it stands for: ten lines of aliases can stand for a billion.
    """

    def __init__(self, text: str):
        super().__init__(text)
        self.depth = self.num_values = 0
        self.sizes: dict[yaml.Node, int] = {}  # number of values in each complete node

    def compose_node(self, parent, index):
        before, is_alias = self.num_values, self.check_event(yaml.AliasEvent)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.YAMLError(f"more than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        self.num_values += self.sizes.get(node, MAX_VALUES) if is_alias else 1  # MAX_VALUES: it contains itself
        if self.num_values >= MAX_VALUES:
            raise yaml.YAMLError(f"{MAX_VALUES} values or more")
        self.sizes.setdefault(node, self.num_values - before)
        return node

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.YAMLError(f"{key.value!r} is given twice{key.start_mark}")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _FlagLoader(_Loader):
    """A _Loader for which null is None, and << merges a mapping into another."""


_Loader.yaml_implicit_resolvers = {}
_FlagLoader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0].endswith((":null", ":merge"))]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag in ("int", "float", "bool", "timestamp"):  # written out, such as !!int 5
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_yaml_str)  # type: ignore[type-var]


def read_yaml(path: Path, flag: str = "") -> Any:
    """Return the content of a YAML file, whose values are text, as written.

    flag: begins messages, such as "--config "; if set, null is None. Raises UserError if the file is not a regular one,
    not UTF-8, not YAML, or beyond the bounds of this module.
    """
    try:
        return yaml.load(read_text(path, MAX_BYTES), _FlagLoader if flag else _Loader)
    except InputError as error:
        raise UserError(f"{flag}{error}") from None
    except BROKEN as error:
        problem = " ".join(str(error).replace('in "<unicode string>", ', "in ").split())
        raise UserError(f"{flag}{path}: not YAML ({problem})") from None
