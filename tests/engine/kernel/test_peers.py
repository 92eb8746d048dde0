"""Where the ranks of an engine meet."""

import psutil
import torch.distributed as dist

from engine.kernel.peers import serve_store


def test_the_store_answers_on_this_host_only_and_ends_with_its_object():
    store = serve_store()
    assert dist.TCPStore("127.0.0.1", store.port, is_master=False).add("here", 1) == 1
    assert listening(store.port) == {"127.0.0.1"}
    port = store.port
    del store
    assert not listening(port)


def listening(port: int) -> set[str]:
    """Addresses on which this process listens at a port."""
    sockets = psutil.Process().net_connections("tcp")
    return {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN and one.laddr.port == port}
