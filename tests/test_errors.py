"""What a user can get wrong: one line that names it, exit status 2, no traceback, nothing written."""

import shutil

import numpy as np
import pytest
from conftest import finish, flags, start
from PIL import Image

import program
import train
from errors import UserError


@pytest.fixture
def data(demo_root, tmp_path):
    """A copy of the demo data to spoil."""
    return shutil.copytree(demo_root, tmp_path / "data")


def no_folder(data):
    shutil.rmtree(data)
    return [], "data: no such folder"


def no_list(data):
    (data / "ImageSets/SegmentationAug/val.txt").unlink()
    return [], "val.txt: the list cannot be read"


def list_names_missing_image(data):
    (data / "JPEGImages/demo_0002.jpg").unlink()
    return [], "demo_0002.jpg: no such file"


def truncated_jpeg(data):
    path = data / "JPEGImages/demo_0002.jpg"
    path.write_bytes(path.read_bytes()[:3000])
    return [], "demo_0002.jpg: not a whole, readable image"


def mask_of_another_size(data):
    Image.fromarray(np.zeros((100, 160), np.uint8)).save(data / "bmp_pseudolabel/demo_0002.png")
    return [], "demo_0002.png: 160x100 pixels, but its image"


def label_out_of_range(data):
    Image.fromarray(np.full((120, 160), 37, np.uint8)).save(data / "pascal_2012_scribble/demo_0002.png")
    return ["--numclasses", "11"], "demo_0002.png: label 37 in 19200 pixel(s): with --numclasses 11 labels are 0..10"


def unknown_model(data):
    return ["--model_type", "resnet"], "--model_type: 'resnet' is not known"


def misspelt_flag(data):
    return ["--batch_siz", "2"], "unknown flag --batch_siz: did you mean --batchsize?"


def unknown_yaml_key(data):
    (data / "c.yaml").write_text("learning_rat: 3\n")
    return ["--config", str(data / "c.yaml")], "c.yaml: unknown key 'learning_rat': did you mean lr?"


def missing_config(data):
    return ["--config", "nowhere.yaml"], "--config nowhere.yaml: No such file"


def resume_from_no_checkpoint(data):
    return ["--resume", str(data / "classes.txt")], "classes.txt: not a whole checkpoint"


def resume_from_missing_file(data):
    return ["--resume", "nowhere.pt"], "--resume nowhere.pt: no such file"


def pretrained_from_no_checkpoint(data):
    return ["--pretrained", str(data / "classes.txt")], "classes.txt: not a whole checkpoint"


def more_processes_than_gpus(data):
    return ["--device", "cuda:97"], "--device cuda:97"


def class_names_of_another_number(data):
    (data / "names.txt").write_text("a\nb\n")
    return ["--classes", str(data / "names.txt")], "names.txt: 2 names, but --numclasses is 5"


def class_names_that_are_nowhere(data):
    return ["--classes", "nowhere.txt"], "--classes nowhere.txt: No such file"


def batch_larger_than_the_list(data):
    return ["--batchsize", "9"], "has 8 image(s) but one optimizer step takes 9"


def no_loss_left(data):
    return ["--dataset", "ScribbleOnly", "--l_seg", "0"], "leaves no loss to train on"


FAULTS = [
    no_folder,
    no_list,
    list_names_missing_image,
    truncated_jpeg,
    mask_of_another_size,
    label_out_of_range,
    unknown_model,
    misspelt_flag,
    unknown_yaml_key,
    missing_config,
    resume_from_no_checkpoint,
    resume_from_missing_file,
    pretrained_from_no_checkpoint,
    more_processes_than_gpus,
    class_names_of_another_number,
    class_names_that_are_nowhere,
    batch_larger_than_the_list,
    no_loss_left,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_fault_is_named_in_one_line(data, tmp_path, capsys, fault):
    words, named = fault(data)
    status = program.run(lambda: train.main([*flags(dataset_path=data, logdir=tmp_path / "log"), *words]))
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert status == 2
    assert len(lines) == 1
    assert named in lines[0]
    assert not list(tmp_path.glob("log/*"))  # the next run has the name


def test_fault_in_a_loader_worker_is_named_in_one_line(data, tmp_path):
    _, named = truncated_jpeg(data)
    [(status, _, stderr)] = finish([start(flags(dataset_path=data, logdir=tmp_path / "log", workers=2), tmp_path)])
    assert status == 2
    assert "Traceback" not in stderr
    assert [named in line for line in stderr.splitlines() if line.startswith("error")] == [True]


def test_our_own_bugs_keep_their_traceback():
    def main():
        raise KeyError("ours")

    with pytest.raises(KeyError):
        program.run(main)


@pytest.mark.parametrize("size", [0, 1, 1000, -1000, -1])
def test_truncated_checkpoint_is_refused(demo_run, tmp_path, size):
    whole = demo_run(name="x") / "last.pt" if size == 0 else None
    path = tmp_path / "cut.pt"
    if whole is None:
        import torch

        torch.save({"weights": torch.zeros(1000)}, path)
        whole = path
    path.write_bytes(whole.read_bytes()[:size])
    with pytest.raises(UserError, match=r"cut\.pt: not a whole checkpoint"):
        demo_run(logdir=tmp_path / "log", resume=path)


def test_code_in_a_checkpoint_is_not_run(demo_run, tmp_path):
    import pickle

    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "was_here"), "w"))

    path = tmp_path / "payload.pt"
    path.write_bytes(pickle.dumps(Payload()))
    for flag in ("resume", "pretrained"):
        with pytest.raises(UserError, match=r"payload\.pt: not a whole checkpoint of tensors and plain values"):
            demo_run(logdir=tmp_path / "log", **{flag: path})
    assert not (tmp_path / "was_here").exists()


def test_weights_of_another_model_are_refused(demo_run, tmp_path):
    import torch

    path = tmp_path / "other.pt"
    torch.save({"encoder.weight": torch.zeros(3)}, path)
    with pytest.raises(UserError, match=r"other\.pt: none of its weights fits --model_type"):
        demo_run(logdir=tmp_path / "log", pretrained=path)
    with pytest.raises(UserError, match=r"no checkpoint of a run; to start from its weights use --pretrained"):
        demo_run(logdir=tmp_path / "log", resume=path)


def test_resume_with_another_model_is_refused(demo_run):
    folder = demo_run(name="x", model_type="res50_ASPP")
    with pytest.raises(UserError, match=r"does not fit this model, check --model_type"):
        demo_run(resume=folder / "last.pt")


def test_imagenet_weights_without_network_are_one_line(demo_run, monkeypatch):
    from urllib.error import URLError

    import torch

    def offline(*args, **kwargs):
        raise URLError("no route to host")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    with pytest.raises(UserError, match=r"--pretrained imagenet: .* no route to host.*use --pretrained none"):
        demo_run(pretrained="imagenet")


def test_a_download_that_stalls_is_given_up(tmp_path, monkeypatch):
    """A server that promises 1000 bytes and sends 10."""
    import socket
    import threading

    import torch

    from models import backbone, pretrained

    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        line, _ = server.accept()
        line.recv(65536)
        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789")
        line.recv(1)  # until the other end closes
        line.close()

    threading.Thread(target=serve, daemon=True).start()
    load, url = torch.hub.load_state_dict_from_url, f"http://127.0.0.1:{server.getsockname()[1]}/x.pth"
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", lambda *_, **__: load(url, model_dir=tmp_path))
    monkeypatch.setattr(backbone, "STALL_SECONDS", 0.5)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(UserError, match=r"--pretrained imagenet: .* cannot be downloaded \(timed out\)"):
        pretrained.read_start_weights("imagenet", 18, lambda _: {})
    assert socket.getdefaulttimeout() is None
    assert not list(tmp_path.iterdir())
    server.close()


def test_a_full_disk_is_named_and_leaves_the_earlier_checkpoint_whole(tmp_path):
    """A limit on the size of files stands in for a full disk: both make the write fail half-way."""
    import resource
    import signal

    import torch

    from runs import checkpoint

    path = tmp_path / "last.pt"
    checkpoint.write(path, checkpoint.to_bytes({"step": 1}))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"last\.pt: the checkpoint cannot be written"):
            checkpoint.write(path, checkpoint.to_bytes({"step": 2, "weights": torch.zeros(1_000_000)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert checkpoint.read(path) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]
