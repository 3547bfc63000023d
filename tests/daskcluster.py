"""A Dask cluster over TLS with real worker processes, for tests: `with DaskCluster() as cluster`.

In a process of its own, as it is in the field, and because Dask's threads and warnings are none of the
tests'. `python -m tests.daskcluster FOLDER WORKERS THREADS` runs until the end of its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any


class DaskCluster:
    def __init__(self, workers: int = 2, threads: int = 8) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpufleet-dask-")
        command = [sys.executable, "-m", "tests.daskcluster", self._folder.name]
        self._process = subprocess.Popen(
            [*command, str(workers), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
            start_new_session=True,
        )
        self.address: str = self._answer()["address"]

    @property
    def environment(self) -> dict[str, str]:
        """Where a client finds its certificate, as Dask documents it."""
        folder = Path(self._folder.name)
        prefix = "DASK_DISTRIBUTED__COMM__TLS"
        return {
            f"{prefix}__CA_FILE": str(folder / "cert.pem"),
            f"{prefix}__CLIENT__CERT": str(folder / "cert.pem"),
            f"{prefix}__CLIENT__KEY": str(folder / "key.pem"),
        }

    def workers(self) -> list[int]:
        """Process ids."""
        found: list[int] = self._ask("workers")["pids"]
        return found

    def add(self) -> None:
        self._ask("add")

    def kill(self) -> None:
        """All of it, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> DaskCluster:  # noqa: PYI034  # Self is newer than Python 3.10
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._folder.cleanup()

    def _ask(self, word: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(word, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def main(folder: str, workers: str, threads: str) -> None:
    from distributed import Client, LocalCluster  # noqa: PLC0415  # in this process alone
    from distributed.security import Security  # noqa: PLC0415

    security = Security.temporary()
    for name, text in (("cert", security.tls_client_cert), ("key", security.tls_client_key)):
        path = Path(folder, f"{name}.pem")
        path.touch(0o600)
        path.write_text(text)
    count = int(workers)
    with (
        LocalCluster(
            n_workers=count,
            threads_per_worker=int(threads),
            processes=True,
            host="127.0.0.1",
            protocol="tls://",
            security=security,
            dashboard_address=None,
            silence_logs=50,
            memory_limit=0,
            local_directory=folder,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        print(json.dumps({"address": cluster.scheduler_address}), flush=True)
        for line in sys.stdin:
            if line.strip() == "add":
                count += 1
                cluster.scale(count)
                print(json.dumps({}), flush=True)
            else:
                print(json.dumps({"pids": list(client.run(os.getpid).values())}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
