"""Holds GPU memory until it is killed, by the driver's own interface; needs no package.

hold.py READY-FILE GPU DEVICE-MIB [PINNED-HOST-MIB] [ignore-term] [child]
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

MIB = 1 << 20


def check(status: int, what: str) -> None:
    if status != 0:
        sys.exit(f"{what} failed with {status}")


def main(ready: str, gpu: int, device_mib: int, pinned_mib: int, words: list[str]) -> None:
    if "ignore-term" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDeviceGet(ctypes.byref(device), gpu), "cuDeviceGet")
    check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device), "cuCtxCreate")
    memory, host = ctypes.c_uint64(), ctypes.c_void_p()
    size = ctypes.c_size_t(device_mib * MIB)
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), size), "cuMemAlloc")
    if pinned_mib:
        size = ctypes.c_size_t(pinned_mib * MIB)
        check(cuda.cuMemHostAlloc(ctypes.byref(host), size, 0), "cuMemHostAlloc")
    if "child" in words and os.fork() == 0:
        os.setsid()
    else:
        with open(ready, "w") as file:  # noqa: PTH123  # pathlib would be the slowest import here
            file.write(str(os.getpid()))
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        int((sys.argv[4:] or ["0"])[0]),
        sys.argv[5:],
    )
