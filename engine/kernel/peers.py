"""Memory that all ranks of an engine see: on GPUs torch's symmetric memory, in tests on the CPU a shared file.

Every rank owns an inbox; the others write into it. NVLink multicast is never used: peers are reached by plain stores.
"""

import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from engine.errors import DeviceError
from engine.weights import Shard

BARRIER_SECONDS = 900.0  # the slowest rank may have to load and compile

os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")


class Peers:
    """What one rank knows of the others. Make it with ``ranks`` processes at once; ``allocate`` is collective."""

    def __init__(self, rank: int, ranks: int, device: torch.device, port: int, watch: Callable[[], None] = lambda: None):
        """``port``: of the store that rank 0 serves (``serve_store``). ``watch``: called while this rank waits; raises when another
        has failed."""
        import torch.distributed as dist

        self.shard, self.device, self._watch = Shard(rank, ranks), device, watch
        self._files: list[Path] = []
        self._memory: list = []  # of each allocation: its handle, or the tensors of all ranks
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        self._store = dist.PrefixStore("ranks", store)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            self.barrier("here")
            dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=rank, world_size=ranks)

    def allocate(self, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(this rank's inbox, int64 [words], zeroed; addresses of all inboxes, int64 [ranks], on the device). All ranks ask for the same
        inboxes in the same order."""
        number = len(self._memory)
        self.barrier(f"loaded {number}")
        if self.device.type == "cuda":
            inbox, addresses = self._symmetric(words)
        else:
            inbox, addresses = self._shared_files(words, number)
        self.barrier(f"inboxes {number}")
        return inbox, torch.tensor(addresses, dtype=torch.int64, device=self.device)

    def barrier(self, name: str) -> None:
        """Wait for all ranks; each name once. Raises DeviceError when rank 0 is gone or one does not come in time."""
        deadline = time.monotonic() + BARRIER_SECONDS
        try:
            count = self._store.add(name, 1)
            while count < self.shard.ranks and time.monotonic() < deadline:
                self._watch()
                time.sleep(0.01)
                count = self._store.add(name, 0)
        except RuntimeError as error:  # torch.distributed's errors
            raise DeviceError(f"GPU {self.shard.rank} lost GPU 0 ({name}): {error}") from error
        if count < self.shard.ranks:
            raise DeviceError(f"GPU {self.shard.rank} waited {BARRIER_SECONDS:.0f} s for the others ({name}).")

    def close(self) -> None:
        import torch.distributed as dist

        self._memory.clear()
        for file in self._files:
            file.unlink(missing_ok=True)
        if dist.is_initialized():
            dist.destroy_process_group()

    def _symmetric(self, words: int) -> tuple[torch.Tensor, list[int]]:
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symmetric

        try:
            inbox = symmetric.empty(words, dtype=torch.int64, device=self.device)
            handle = symmetric.rendezvous(inbox, dist.group.WORLD)
        except RuntimeError as error:
            raise DeviceError(f"GPU {self.shard.rank} cannot share its memory with the other GPUs: {error}") from error
        inbox.zero_()
        torch.cuda.synchronize(self.device)
        self._memory.append(handle)
        return inbox, list(handle.buffer_ptrs)

    def _shared_files(self, words: int, number: int) -> tuple[torch.Tensor, list[int]]:
        folder = "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()
        handle, own = tempfile.mkstemp(prefix="inbox-", dir=folder)
        os.ftruncate(handle, words * 8)
        os.close(handle)
        self._files.append(Path(own))
        rank, ranks = self.shard.rank, self.shard.ranks
        self._store.set(f"inbox {number} {rank}", own)
        self.barrier(f"files {number}")
        paths = [self._store.get(f"inbox {number} {other}").decode() for other in range(ranks)]
        inboxes = [torch.from_file(path, shared=True, size=words, dtype=torch.int64) for path in paths]
        self._memory.append(inboxes)
        return inboxes[rank], [inbox.data_ptr() for inbox in inboxes]


def serve_store() -> "torch.distributed.TCPStore":
    """The store through which ranks find each other, on a free port of this host that other hosts do not reach; ends with the object."""
    import torch.distributed as dist

    listener = socket.socket()  # torch would listen on every address
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    return dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
