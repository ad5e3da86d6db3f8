"""all_reduce (float32, sum) of torch.distributed's gloo, back to back; a JSON line a size.

Usage: python allreduce_gloo.py PORT BYTES:ITERATIONS ... (two ranks; needs torch)
"""

import json
import os
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def rank_main(rank: int, port: int, cases: list[tuple[int, int]]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for nbytes, n in cases:
        data = torch.zeros(nbytes // 4)
        times = []
        for i in range(-2, n):
            start = time.perf_counter()
            dist.all_reduce(data)
            if i >= 0:
                times.append(time.perf_counter() - start)
        times.sort()
        if rank == 0:
            line = {"bytes": nbytes, "us_p50": times[n // 2] * 1e6, "us_min": times[0] * 1e6}
            print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch.multiprocessing as mp

    pairs = [tuple(int(x) for x in text.split(":")) for text in sys.argv[2:]]
    mp.spawn(rank_main, (int(sys.argv[1]), pairs), nprocs=2)
