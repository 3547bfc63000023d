"""Peers that are libraries: the shortest sensible program for each, run as a process of its own.

libraries.py NAME AT_ONCE IDENTITY KNOWN_HOSTS PORT COMMAND ADDRESS,ADDRESS,...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def fabric_group(at_once: int, where: Sequence[str], command: str, hosts: Sequence[str]) -> int:
    """fabric has no limit: a thread per host."""
    import fabric  # noqa: PLC0415
    import paramiko  # noqa: PLC0415

    del at_once
    group = fabric.ThreadingGroup.from_connections(
        [_fabric_connection(fabric, paramiko, where, host) for host in hosts]
    )
    try:
        results = group.run(command, hide=True)
    except fabric.exceptions.GroupException as error:
        results = error.result
    print(*(str(getattr(result, "stdout", result)) for result in results.values()))
    return len(results.succeeded)


def _fabric_connection(fabric, paramiko, where, host):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    identity, known_hosts, port = where
    connection = fabric.Connection(
        host,
        user="root",
        port=int(port),
        config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
        connect_kwargs={"key_filename": identity, "look_for_keys": False, "allow_agent": False},
    )
    connection.client.load_host_keys(known_hosts)
    connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    return connection


def bare_fabric(at_once: int, where: Sequence[str], command: str, hosts: Sequence[str]) -> int:
    """One host after the other: what a connection costs without any fan-out."""
    import fabric  # noqa: PLC0415
    import paramiko  # noqa: PLC0415

    del at_once
    good = 0
    for host in hosts:
        with _fabric_connection(fabric, paramiko, where, host) as connection:
            good += connection.run(command, hide=True).ok
    return good


def parallel_ssh(at_once: int, where: Sequence[str], command: str, hosts: Sequence[str]) -> int:
    """libssh2; checks no host keys."""
    from pssh.clients import ParallelSSHClient  # noqa: PLC0415

    identity, _, port = where
    client = ParallelSSHClient(
        list(hosts), user="root", port=int(port), pkey=identity, pool_size=at_once, num_retries=1
    )
    good = 0
    for output in client.run_command(command, stop_on_errors=False):
        lines = list(output.stdout or ())
        good += output.exit_code == 0 and bool(lines)
    return good


def async_ssh(at_once: int, where: Sequence[str], command: str, hosts: Sequence[str]) -> int:
    import asyncio  # noqa: PLC0415

    import asyncssh  # noqa: PLC0415

    identity, known_hosts, port = where

    async def one(host: str, places: asyncio.Semaphore) -> bool:
        async with places:
            options = {"username": "root", "client_keys": [identity], "known_hosts": known_hosts}
            async with asyncssh.connect(host, int(port), config=None, **options) as connection:
                return (await connection.run(command)).exit_status == 0

    async def every() -> int:
        places = asyncio.Semaphore(at_once)
        results = await asyncio.gather(*(one(h, places) for h in hosts), return_exceptions=True)
        return sum(result is True for result in results)

    return asyncio.run(every())


def gpufleet_query(at_once: int, where: Sequence[str], command: str, hosts: Sequence[str]) -> int:
    """gpufleet's own way to the nodes, with the peers' command in place of a look."""
    from gpufleet.model import NodeReport, Verdict  # noqa: PLC0415
    from gpufleet.policy import Access, NodeSpec, Policy  # noqa: PLC0415
    from gpufleet.run import Interrupt, run_nodes  # noqa: PLC0415
    from gpufleet.ssh import Network  # noqa: PLC0415
    from gpufleet.transport import Script  # noqa: PLC0415

    identity, known_hosts, port = where

    class Query(Script):
        def text(self, token: str) -> str:
            asked = f"gf_tool query {command}\n"
            return f"{super().text(token)}\ngf_mark start\n{asked}gf_mark finish\n"

    script = Query("query", ("frame.sh",), {"GF_TOOL_S": "30"})
    specs = [
        NodeSpec(
            host,
            Access(host, port=int(port), identity_file=(identity,), known_hosts=(known_hosts,)),
            Policy(),
        )
        for host in hosts
    ]
    network = Network()
    network.prepare(specs)

    def work(spec: NodeSpec) -> NodeReport:
        session = network.connect(spec)
        try:
            section = session.run(script, timeout_s=30).get("query")
        finally:
            session.close()
        good = section is not None and section.status == "0" and section.text.strip()
        return NodeReport(spec.name, spec.name, Verdict.IDLE if good else Verdict.UNKNOWN, "", "")

    reports = run_nodes(specs, work, Interrupt(), at_once)
    return sum(report.verdict is Verdict.IDLE for report in reports)


PROGRAMS = {
    "fabric": fabric_group,
    "bare": bare_fabric,
    "pssh": parallel_ssh,
    "asyncssh": async_ssh,
    "gpufleet": gpufleet_query,
}


def main() -> int:
    name, at_once, identity, known_hosts, port, command, listed = sys.argv[1:]
    hosts = listed.split(",")
    good = PROGRAMS[name](int(at_once), (identity, known_hosts, port), command, hosts)
    print(f"{good} of {len(hosts)} answered")
    return 0 if good == len(hosts) else 1


if __name__ == "__main__":
    sys.exit(main())
