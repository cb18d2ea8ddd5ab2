"""llama.cpp's own server, by the package xllamacpp: serve_llama_cpp.py MODEL PORT THREADS."""

from __future__ import annotations

import signal
import sys

import xllamacpp as xl

PARALLEL, CONTEXT = 32, 16_384


def main() -> None:
    """Serve until a signal comes."""
    model, port, threads = sys.argv[1:]
    params = xl.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_parallel, params.n_ctx, params.kv_unified = PARALLEL, CONTEXT, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    params.endpoint_metrics = True
    server = xl.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
