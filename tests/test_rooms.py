"""Rooms import and call only what docs/how_it_works.md allows, none in a circle; torch's privates are not used."""

import ast
import dataclasses
import functools
import importlib
import re

import pytest
import torch
from conftest import REPO

from data import layout
from distributed import precision as amp
from flags import Config

PROGRAMS = {path.stem for path in REPO.glob("*.py")}
TEXT = (REPO / "docs/how_it_works.md").read_text(encoding="utf-8").split("## Rooms")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| `(\w+)/` \| .* \| (.*) \|$", TEXT, re.MULTILINE)
ROOMS = [name for name, _ in ROWS]


def imported(source: str) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [[a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] for node in nodes]
    return {name.split(".")[0] for some in names for name in some}


def test_each_room_imports_only_the_rooms_below_that_its_row_names():
    assert set(ROOMS) == {init.parent.name for init in REPO.glob("*/__init__.py")} - {"benchmarks"}
    wrong = []
    for room, text in ROWS:
        allowed = set(re.findall(r"\w+", text))
        assert allowed <= set(ROOMS[: ROOMS.index(room)]), f"the row of {room} names a room above it"
        for file in (REPO / room).rglob("*.py"):
            others = imported(file.read_text(encoding="utf-8")) & ({*ROOMS, "scripts"} | PROGRAMS) - {room}
            wrong += [f"{file.relative_to(REPO)} imports {name}" for name in sorted(others - allowed)]
    assert not wrong


@functools.cache
def calls(*rooms: str) -> list[tuple[str, ast.expr]]:
    """(file, the function as written) of each call in the modules of some folders."""
    files = [file for room in rooms for file in (REPO / room).glob("*.py" if room == "." else "**/*.py")]
    nodes = [(file, node) for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    return [(file.relative_to(REPO).as_posix(), node.func) for file, node in nodes if isinstance(node, ast.Call)]


def callers(*names: str) -> set[str]:
    """The product's modules that call one of these functions, by its name in the call."""
    return {file for file, call in calls(".", *ROOMS, "scripts") if ast.unparse(call) in names}


def test_files_of_users_are_read_by_the_guarded_reader_only():
    """support.files.read_bytes() neither waits for a pipe nor reads a device without end."""
    readers = {"open", "ElementTree.parse", "json.load", "np.fromfile", "np.genfromtxt", "np.load", "np.loadtxt"}
    methods = {"open", "read_bytes", "read_text"}
    every = calls("tools", "data")
    found = {file for file, call in every if ast.unparse(call) in readers or getattr(call, "attr", "") in methods}
    assert found == {"data/images/__init__.py", "data/images/files.py"}


def test_image_files_are_decoded_in_one_module_only():
    """What data/images/files.py refuses, such as pipes and PostScript, then cannot come in elsewhere."""
    decoders = ("Image.open", "cv2.imread", "cv2.imdecode", "cv2.imreadmulti", "plt.imread", "imageio.imread")
    assert callers(*decoders) == {"data/images/files.py"}


def test_all_output_goes_through_one_door():
    """Only support/terminal.py writes to the streams, and only support/progress.py makes bars."""
    writers = ("print", "tqdm", "tqdm.write", "sys.stdout.write", "sys.stderr.write")
    assert callers(*writers) == {"support/progress.py"}


def test_one_module_reads_checkpoints():
    assert callers("torch.load") == {"training/checkpoint.py"}


def test_flags_are_frozen_and_only_settling_makes_others():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().lr = 1.0  # type: ignore[misc]
    # inference/trained.py settles the flags of a checkpoint for the programs that use one.
    assert callers("dataclasses.replace", "replace") & {"train.py", "utils.py"} == set()
    in_training = {file for file in callers("dataclasses.replace") if file.startswith("training/")}
    assert in_training == {f"training/{name}.py" for name in ("settle", "data_flags", "network_flags")}


@pytest.mark.parametrize("dataset", ["ScribblePseudoDsDc", "Dense"])
def test_a_run_lists_the_files_of_each_split_once(demo_run, monkeypatch, dataset):
    listed, match_files = [], layout.match_files
    monkeypatch.setattr(layout, "match_files", lambda split: listed.append(split) or match_files(split))
    # Without --epochs the recipe looks at the files, too.
    demo_run(dataset=dataset, max_steps=1, epochs=None)
    assert len(listed) == 2  # training and validation


def test_no_module_imports_itself_by_way_of_others():
    modules = [*REPO.glob("*.py"), *(file for room in ROOMS for file in (REPO / room).rglob("*.py"))]
    names = {".".join(file.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__"): file for file in modules}
    imports: dict[str, set[str]] = {}
    for name, file in names.items():
        nodes = ast.parse(file.read_text("utf-8")).body  # those that run when the module is imported
        found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        for node in (node for node in nodes if isinstance(node, ast.ImportFrom)):
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= parts & names.keys() or {str(node.module)}
        imports[name] = found & names.keys() - {name}
    while leaves := {name for name, found in imports.items() if not found}:
        imports = {name: found - leaves for name, found in imports.items() if name not in leaves}
    assert not imports, f"in a circle, or above one: {sorted(imports)}"


PRIVATE = re.compile(r"\b(?:torch|nn|dist)(?:\.\w+)*\._[a-z]\w*|\b_(?:BatchNorm|conv_forward|overloadpacket|buffers)\b")
OUTSIDE = ("tests", "benchmarks", ".venv")


def test_the_product_names_no_private_function_of_torch():
    files = [path for path in REPO.rglob("*.py") if path.relative_to(REPO).parts[0] not in OUTSIDE]
    assert not {name for path in files for name in PRIVATE.findall(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", sorted(path.stem for path in REPO.glob("benchmarks/*.py")))
def test_a_benchmark_imports_what_there_is(name):
    importlib.import_module(f"benchmarks.{name}")


def test_auto_precision_without_torchs_private_tests_of_the_cpu(monkeypatch):
    before = amp.has_native_bf16(torch.device("cpu"))
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.delattr(torch.cpu, name)
    assert amp.has_native_bf16(torch.device("cpu")) == before
