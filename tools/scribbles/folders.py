"""Find the label maps of a folder."""

from pathlib import Path

from data.images import IMAGE_SUFFIXES, LABEL_SUFFIXES
from data.layout import list_folder, read_list
from support.errors import UserError


def find_labels(folder: Path, list_file: Path | None = None) -> dict[str, Path]:
    """Return {name without suffix: file} of the label maps below a folder.

    list_file: names to take, one a line; None takes all. Raises UserError if there is none, or a listed one is missing.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    found = {name: paths[0] for name, paths in list_folder(folder, LABEL_SUFFIXES).items()}
    if not found:
        raise UserError(f"{folder}: no label map in it ({', '.join(LABEL_SUFFIXES)})")
    if list_file is None:
        return found
    chosen = {}
    for line in read_list(list_file, plain=True):
        suffix = Path(line).suffix
        name = line if line in found or suffix.lower() not in IMAGE_SUFFIXES else line.removesuffix(suffix)
        if name not in found:
            raise UserError(f"{list_file}: {name!r}: no label map of this name in {folder}")
        chosen[name] = found[name]
    return chosen
