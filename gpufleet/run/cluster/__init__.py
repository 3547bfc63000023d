"""An existing Dask cluster as the engine of a run. Imports Dask where it is used.

Its workers use their own keys, agents and known_hosts files; what travels to them is plain data. Dask
may run a task twice, when it loses sight of a worker: the node then refuses the second act.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpufleet import __version__
from gpufleet.errors import UsageError
from gpufleet.run.cluster.handing import Cluster, said
from gpufleet.run.cluster.worker import version
from gpufleet.run.fanout import Progress
from gpufleet.run.interrupt import Interrupt
from gpufleet.run.origin import here
from gpufleet.run.task import Task

if TYPE_CHECKING:
    from distributed import Client

_CONNECT_S = 10.0
"""For the scheduler, and then for all its workers, to answer."""

_CLOSE_S = 2.0

_TLS = "Dask's TLS settings: DASK_DISTRIBUTED__COMM__TLS__CA_FILE and its like"


def check_address(address: str) -> None:
    """Dask runs whatever it is sent: who can speak to its scheduler has the fleet's root logins."""
    if not re.fullmatch(r"tls://[^\s/]+:[0-9]+", address):
        raise UsageError(
            f'--scheduler: read "{address}": an address like tls://dask1:8786; only TLS is used, since '
            "whoever can speak to a scheduler runs programs on its workers"
        )


@contextlib.contextmanager
def cluster(
    address: str, task: Task, interrupt: Interrupt, progress: Progress
) -> Iterator[Cluster]:
    """Raises `UsageError`, one line, where the cluster can't be used; nothing was touched then."""
    check_address(address)
    try:
        import distributed  # noqa: PLC0415  # an extra, and half a second
    except ImportError as error:
        raise UsageError(
            "--engine dask: Dask isn't installed: pip install 'gpufleet[dask]'"
        ) from error
    _silence()
    try:
        client = distributed.Client(address, timeout=f"{_CONNECT_S}s", set_as_default=False)
    except Exception as error:
        raise UsageError(f"--scheduler {address}: {_reason(error)}") from error
    with contextlib.ExitStack() as closing:
        closing.callback(_close, client)
        count = _check_workers(address, client)
        ready = replace(task, here=here(), share=count, repeatable=task.command == "reset")
        engine = Cluster(client, ready, interrupt, progress)
        closing.callback(engine.close)
        interrupt.also_stop.append(engine.stop)
        interrupt.also_hurry.append(engine.hurry)
        yield engine


def _silence() -> None:
    """Dask's own words about connections come and go; what counts is said here. It gives each of its
    loggers a level of its own, and warns of what needn't match, such as a tool that isn't used."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in {"distributed", "tornado"}:
            logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"distributed\.")


def _close(client: Client) -> None:
    with contextlib.suppress(Exception):
        client.close(timeout=_CLOSE_S)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    secrecy = re.search("TLS|SSL|X509|PEM|No such file|Permission|security", text)
    if isinstance(error, TypeError | AttributeError) and not secrecy:
        return f"what answers there is no scheduler of this version of Dask ({text})"[:300]
    if isinstance(error, OSError | TimeoutError):
        text = f"the scheduler can't be reached: {text}"
    if secrecy:
        text += f" ({_TLS})"
    return text[:500]


def _check_workers(address: str, client: Client) -> int:
    """How many there are. Each must have this very version: both sides take each other's data."""
    try:
        names = list(client.scheduler_info(n_workers=-1)["workers"])
        found = client.sync(_versions, client, names)
    except Exception as error:
        raise UsageError(f"--scheduler {address}: {_reason(error)}") from error
    if not found:
        raise UsageError(f"--scheduler {address}: it has no workers")
    for worker, told in found.items():
        cure = f": pip install gpufleet=={__version__}"
        if isinstance(told, asyncio.TimeoutError | TimeoutError):
            what, cure = f"no answer within {_CONNECT_S:.0f} s", ": restart or end it"
        elif isinstance(told, BaseException) and "No module named" in str(told):
            what = f"gpufleet can't be loaded there ({told})"
        elif isinstance(told, BaseException):
            what = said(told)
        elif told != __version__:
            what = f"gpufleet {told} there, {__version__} here"
        else:
            continue
        raise UsageError(f"--scheduler {address}: worker {worker}: {what}{cure}")
    return len(found)


async def _versions(client: Client, workers: list[str]) -> Mapping[str, Any]:
    """Of each, or why there is none. Each by itself, so that one that hangs can be named."""

    async def ask(worker: str) -> object:
        try:
            told = await asyncio.wait_for(
                client.run(version, workers=[worker], on_error="return"), _CONNECT_S
            )
        except Exception as error:  # noqa: BLE001  # told by the caller
            return error
        return told[worker]

    return dict(zip(workers, await asyncio.gather(*map(ask, workers)), strict=True))
