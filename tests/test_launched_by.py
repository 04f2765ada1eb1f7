"""Which place a process finds in the variables of each launcher, and which device and store it uses."""

import os
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from conftest import refused

from distributed import device, rank_checks, rendezvous
from support import launched_by, program
from support.errors import UserError
from support.launched_by import Launch


def variables(text: str) -> dict[str, str]:
    return dict(word.split("=") for word in text.split())


TORCHRUN = variables("RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=29500")
TORCHRUN |= variables("TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True")
BY_HAND = variables("RANK=1 WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=12355")
JOB = variables("SLURM_JOB_ID=4242 SLURM_NTASKS=16 SLURM_JOB_NODELIST=gpu[03-05]")
# Task 9 of `srun --nodes 2 --ntasks-per-node 8`: the second task of the second node.
STEP = variables("SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=16 SLURM_STEP_NODELIST=gpu[04-05]")
SRUN = JOB | STEP | variables("SLURM_PROCID=9 SLURM_LOCALID=1")
BATCH_SCRIPT = JOB | variables("SLURM_PROCID=0 SLURM_LOCALID=0")
# With use_interactive_step, salloc's shell is a step too, but of one task.
SALLOC_SHELL = BATCH_SCRIPT | variables("SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=4294967290")
HAND = "RANK and WORLD_SIZE"


@pytest.mark.parametrize(
    ("environment", "place", "url"),
    [
        # torchrun's own store serves, whatever MASTER_ADDR is.
        (TORCHRUN, Launch("torchrun", 5, 8, 1, 4), "env://"),
        (BY_HAND, Launch(HAND, 1, 2), "tcp://node0:12355"),
        (BY_HAND | {"MASTER_ADDR": "[::1]"}, Launch(HAND, 1, 2), "tcp://[::1]:12355"),
        # zlib.crc32(b"4242.0") = 2159044726, which modulo 12000 is 4726
        (SRUN, Launch("srun", 9, 16, 1), "tcp://gpu04:24726"),
        (SRUN | {"MASTER_ADDR": "node0", "MASTER_PORT": "1234"}, Launch("srun", 9, 16, 1), "tcp://node0:1234"),
        # torchrun in a step of srun with one task per node
        (SRUN | TORCHRUN, Launch("torchrun", 5, 8, 1, 4), "env://"),
    ],
)
def test_place_and_address(environment, place, url):
    assert launched_by.find(environment) == place
    assert rendezvous.find_address(environment, place) == url
    assert launched_by.rank_of(environment) == str(place.rank)


@pytest.mark.parametrize("environment", [{}, BATCH_SCRIPT, SALLOC_SHELL, SRUN | {"SLURM_STEP_NUM_TASKS": "1"}])
def test_no_launcher(environment):
    assert launched_by.find(environment) is None
    assert launched_by.rank_of(environment) == ""


def test_first_host_of_slurms_lists():
    assert rendezvous.first_host("node[03-05,9]") == "node03"  # leading zeros stay
    assert rendezvous.first_host("rack[2-3]n[05-07]-ib") == "rack2n05-ib"
    assert rendezvous.first_host("gpu-1.cluster.org,gpu-2.cluster.org") == "gpu-1.cluster.org"


def test_flags_set_the_place_without_a_launcher():
    assert launched_by.find_or_make({}) == Launch("flags", 0, 1)
    assert rendezvous.find_address({}, Launch("flags", 0, 1, 0)) == "tcp://127.0.0.1:0"
    assert launched_by.find_or_make({}, local_rank=3) == Launch("flags", 0, 1, 3)
    # Which processes share a machine is known once they have connected.
    assert launched_by.find_or_make({}, world_size=4, rank=2) == Launch("flags", 2, 4)
    assert launched_by.find_or_make(BY_HAND) == Launch(HAND, 1, 2)
    assert launched_by.find_or_make({}, world_size=4, rank=2, local_rank=0) == Launch("flags", 2, 4, 0)
    assert launched_by.find_or_make(BY_HAND, local_rank=0).local_rank == 0
    assert launched_by.find_or_make(SRUN, world_size=16, local_rank=7).local_rank == 1  # the launcher knows better
    assert launched_by.find_or_make(BATCH_SCRIPT, world_size=1) == Launch("flags", 0, 1)  # asked for explicitly


@pytest.mark.parametrize(
    ("environment", "flags", "named"),
    [
        (BATCH_SCRIPT, {}, "SLURM_NTASKS is 16, but srun did not start this process: put srun in front"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, {}, "mpirun started this process, but sets no RANK"),
        (SALLOC_SHELL, {}, "put srun in front"),
        (SRUN, {"world_size": 8}, "--world_size 8, but srun set it to 16"),
        (SRUN | {"SLURM_PROCID": "16"}, {}, "rank 16 with world size 16: ranks are 0 to 15; check srun"),
        (SRUN | {"SLURM_PROCID": "x"}, {}, "SLURM_PROCID is 'x', not a number"),
        (BY_HAND | {"WORLD_SIZE": "65537"}, {}, "world size 65537: at most 65536 processes; check RANK"),
        ({}, {"rank": 1}, "rank 1 with world size 1: ranks are 0 to 0; check --rank and --world_size"),
        ({}, {"world_size": 65537, "rank": 0}, "at most 65536 processes; check --rank and --world_size"),
        (BY_HAND | {"LOCAL_RANK": "-5"}, {"local_rank": 0}, "LOCAL_RANK -5: must be at least 0"),
        ({}, {"world_size": 2}, "give each process its --rank"),
        ({"RANK": "0"}, {}, "WORLD_SIZE is not set"),  # alone it would train as a group of one
        ({"WORLD_SIZE": "2"}, {}, "(docs/DDP_TRAINING.md); to train alone: unset WORLD_SIZE"),
        (variables("RANK=0 WORLD_SIZE=2 MASTER_PORT=1"), {}, "MASTER_ADDR is not set: it names rank 0's machine; to"),
        (BY_HAND | {"MASTER_PORT": "70000"}, {}, "port 70000: must be 1 to 65535"),
        (BY_HAND | {"MASTER_PORT": "0"}, {}, "port 0: must be 1 to 65535"),  # the others could not know which one
        (SRUN, {"rank": 3}, "--rank 3, but srun set it to 9: drop the flag"),
        (SRUN | {"SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": ""}, {}, "set MASTER_ADDR"),
    ],
)
def test_impossible_places_and_addresses_are_named(environment, flags, named):
    with refused(named):
        rendezvous.find_address(environment, launched_by.find_or_make(environment, **flags))


def test_variables_that_an_earlier_command_left_are_named(monkeypatch):
    assert [launched_by.alone(place) for place in ({}, TORCHRUN, SRUN, variables("MASTER_PORT=1"))] == [""] * 4
    monkeypatch.setattr(sys, "platform", "win32")
    assert launched_by.alone(variables("RANK=0 WORLD_SIZE=2")) == '; to train alone: set "RANK=" & set "WORLD_SIZE="'


def test_errors_carry_the_rank_under_any_launcher(monkeypatch, capsys):
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    assert program.run(mock.Mock(side_effect=UserError("nothing works"))) == 2
    assert capsys.readouterr().err == "error (rank 9): nothing works\n"


@pytest.mark.parametrize(
    ("addresses", "variable", "interfaces"),
    [
        (["10.0.0.1", "", "10.0.0.2"], None, ["ib0", "ib0", "ib1"]),  # rank 1 is on rank 0's machine
        (["", ""], None, ["", ""]),  # one machine
        (["10.0.0.1", "10.0.0.2"], "eth7", ["eth7", "eth7"]),
    ],
)
def test_gloo_listens_where_other_machines_reach_this_one(monkeypatch, addresses, variable, interfaces):
    monkeypatch.setattr(rendezvous, "interface_of", {"10.0.0.1": "ib0", "10.0.0.2": "ib1"}.get)
    store, found = dist.HashStore(), []
    for rank, address in enumerate(addresses):
        monkeypatch.setattr(os, "environ", {"GLOO_SOCKET_IFNAME": variable} if variable else {})
        rendezvous.choose_gloo_interface(store, rank, address)
        found.append(os.environ.get("GLOO_SOCKET_IFNAME", ""))
    assert found == interfaces


def test_device_where_srun_shows_each_task_its_own_gpu(monkeypatch):
    """--gpus-per-task 1: local rank 3 finds its GPU as cuda:0; without the option, it uses cuda:3 of 4."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    for num_gpus, index in ((1, 0), (4, 3)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda num_gpus=num_gpus: num_gpus)
        assert device.find_device("auto", 3, 4) == torch.device("cuda", index)
    with pytest.raises(UserError, match=r"1 process\(es\) on this machine but 4 CUDA device\(s\).* check .*LOCAL_RANK"):
        device.find_device("auto", 4, 1)  # LOCAL_RANK is set, but to the rank among all machines


def test_two_ranks_on_one_gpu_are_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="H100", uuid="GPU-a"))
    group = SimpleNamespace(device=torch.device("cuda"), gather=lambda value: [value, value])
    with pytest.raises(UserError, match="ranks 0 and 1 are both on H100 GPU-a of "):
        rank_checks.check_gpus(group)


def test_backend_is_nccl_on_cuda_except_on_windows(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert [device.choose_backend("auto", where) for where in (cpu, cuda)] == ["gloo", "nccl"]
    assert device.choose_backend("gloo", cuda) == "gloo"
    monkeypatch.setattr(sys, "platform", "win32")
    assert device.choose_backend("auto", cuda) == "gloo"
    with pytest.raises(UserError, match="needs CUDA and NCCL, and not Windows: use --backend gloo"):
        device.choose_backend("nccl", cuda)
