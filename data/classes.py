"""Names of classes, for tables and TensorBoard."""

from pathlib import Path

from errors import UserError

PRESETS = Path(__file__).parent.parent / "configs" / "classes"


def read_class_names(chosen: str, num_classes: int) -> list[str]:
    """The names of the preset `chosen`, or in the file of that path, one a line; class numbers if it is ""."""
    if not chosen:
        return [str(number) for number in range(num_classes)]
    preset = PRESETS / f"{chosen}.txt"
    try:
        names = (preset if preset.is_file() else Path(chosen)).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--classes {chosen}: {getattr(error, 'strerror', 'not UTF-8 text')}") from None
    names = [name.strip() for name in names if name.strip()]
    if len(names) != num_classes:
        raise UserError(f"--classes {chosen}: {len(names)} names, but --numclasses is {num_classes}")
    return names
