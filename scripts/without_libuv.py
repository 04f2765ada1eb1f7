"""Run one of torch's launchers without libuv, which PyTorch for Windows lacks: python without_libuv.py MODULE [words].

torchrun and torch.distributed.launch of torch 2.4 to 2.15 (at least) ask for it whatever USE_LIBUV says, and
end there with an error: https://github.com/pytorch/pytorch/issues/148283.
"""

import runpy
import sys

import torch.distributed as dist


class Store(dist.TCPStore):
    def __init__(self, *args, **options):
        super().__init__(*args, **options | {"use_libuv": False})


if __name__ == "__main__":
    dist.TCPStore = Store  # type: ignore[misc]
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
