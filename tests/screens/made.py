"""Runs that were made up, the same each time: what views are tested and captured with."""

from __future__ import annotations

from gpufleet.model import Gpu, Moment, NodeReport, ProcessLine, RunReport, Verdict

TOTAL = 183_359
RUN_ID = "20260131-020000-9f3a1c"


def gpus(*used: int | None, before: int | None = None, count: int = 8) -> tuple[Gpu, ...]:
    """The last value goes on to the last GPU."""
    filled = [*used, *[used[-1]] * (count - len(used))]
    return tuple(
        Gpu(i, f"GPU-{i}", before, mib, "[N/A]" if mib is None else "", TOTAL)
        for i, mib in enumerate(filled)
    )


def process(pid: int, command: str, user: str = "root", **more: object) -> ProcessLine:
    fields = {"owner": "", "rule": "workload", "why": "matches sglang", **more}
    return ProcessLine(pid, user, command=command, **fields)  # type: ignore[arg-type]


def workers(first: int, signal: str = "", age_s: int = 11_500) -> tuple[ProcessLine, ...]:
    return tuple(
        process(
            first + n, f"sglang::scheduler_TP{n}", signal=signal, age_s=age_s, memory_mib=150_000
        )
        for n in range(8)
    )


SPARED = (
    process(
        50,
        "/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg",
        owner="nvidia-fabricmanager.service",
        rule="gpu-daemon",
        why="GPU daemon",
        age_s=864_000,
    ),
    process(
        51,
        "/usr/bin/nvidia-persistenced --user nvpd",
        user="nvpd",
        owner="nvidia-persistenced.service",
        rule="gpu-daemon",
        why="GPU daemon",
        age_s=864_000,
    ),
)


def clean(host: str, number: int) -> NodeReport:
    return NodeReport(
        host,
        f"10.1.230.{number % 250}",
        Verdict.CLEAN,
        attempts=1,
        elapsed_s=1.1 + number % 4 / 10,
        gpus=gpus(0, before=150_000),
        killed=workers(4000 + number, "KILL"),
        spared=SPARED,
        timeline=(
            Moment(0, "connect"),
            Moment(0.12, "look"),
            Moment(0.3, "kill", "attempt 1: 8 processes"),
            Moment(0.34, "free", "signals sent"),
            Moment(0.6, "settle"),
            Moment(1.1 + number % 4 / 10, "done", "CLEAN"),
        ),
    )


def _trouble(host: str, number: int) -> NodeReport:
    address = f"10.1.230.{number % 250}"
    kinds = (
        NodeReport(
            host,
            address,
            Verdict.UNREACHABLE,
            f"connection refused by {address} port 22: no sshd listens there",
            f"ssh root@{address} true",
            "connect",
            elapsed_s=0.4,
            timeline=(Moment(0, "connect"), Moment(0.4, "done", "UNREACHABLE")),
        ),
        NodeReport(
            host,
            address,
            Verdict.DIRTY,
            "came back after a kill: pid 9120 (sglang.service); sglang.service comes back "
            "(Restart=always, started 3 times)",
            f"ssh root@{address} systemctl stop sglang.service",
            attempts=2,
            elapsed_s=4.2,
            gpus=gpus(62_056, 62_056, 0, before=150_000),
            killed=workers(4000, "KILL"),
            survivors=(
                process(
                    9120,
                    "python3 -m sglang.launch_server --api-key ***",
                    owner="sglang.service",
                    age_s=1,
                ),
            ),
            spared=SPARED,
            warnings=("/dev/shm: 12 files that nobody uses, 4096 MiB",),
            timeline=(
                Moment(0, "connect"),
                Moment(0.2, "look"),
                Moment(0.4, "kill", "attempt 1: 8 processes"),
                Moment(0.5, "free", "signals sent"),
                Moment(1.9, "retry", "try 1: came back; next in 0.1 s"),
                Moment(2.0, "kill", "attempt 2: 1 processes"),
                Moment(2.1, "free", "signals sent"),
                Moment(4.2, "done", "DIRTY"),
            ),
        ),
        NodeReport(
            host,
            address,
            Verdict.BROKEN,
            "7 of 8 GPUs reported, missing 7; GPU 3 reads [N/A]",
            f"ssh root@{address} dmesg | grep -i xid",
            attempts=1,
            elapsed_s=2.5,
            gpus=gpus(0, 0, 0, None, 0, before=150_000, count=7),
            killed=workers(4000, "KILL"),
            spared=SPARED,
            timeline=(
                Moment(0, "connect"),
                Moment(0.1, "look"),
                Moment(0.3, "kill"),
                Moment(0.4, "free"),
                Moment(2.5, "done", "BROKEN"),
            ),
        ),
        NodeReport(
            host,
            address,
            Verdict.SKIPPED,
            "job 8123 of alice runs there (pid 4811 python3 train.py)",
            "scontrol update nodename=" + host + " state=drain reason=reset, or --jobs kill",
            elapsed_s=0.4,
            gpus=gpus(120_000, before=120_000),
            timeline=(Moment(0, "connect"), Moment(0.2, "look"), Moment(0.4, "done", "SKIPPED")),
        ),
    )
    return kinds[number % len(kinds)]


def hosts(count: int) -> list[str]:
    width = max(2, len(str(count)))
    return [f"gpu{n:0{width}}" for n in range(1, count + 1)]


def reset_run(count: int) -> RunReport:
    """Every node from the seventh on whose number is a multiple of 7 has a trouble of its own."""
    nodes = [
        _trouble(host, n // 7) if n % 7 == 0 else clean(host, n)
        for n, host in enumerate(hosts(count), 1)
    ]
    return RunReport(
        RUN_ID,
        "reset",
        "inference-pool",
        "2026-01-31T02:00:00.000Z",
        "2026-01-31T02:00:05.300Z",
        tuple(nodes),
    )


def status_run(count: int) -> RunReport:
    """Busy ones with different holders, a few idle, and troubles."""
    nodes = []
    for n, host in enumerate(hosts(count), 1):
        address = f"10.1.230.{n % 250}"
        if n % 7 == 0 and n // 7 % 4 != 3:
            trouble = _trouble(host, n // 7 % 4)
            verdict = Verdict.BUSY if trouble.verdict is Verdict.DIRTY else trouble.verdict
            reason = "" if verdict is Verdict.BUSY else trouble.reason
            step = "" if verdict is Verdict.BUSY else trouble.next_step
            node = NodeReport(
                host,
                address,
                verdict,
                reason,
                step,
                trouble.stage,
                elapsed_s=0.3,
                gpus=trouble.gpus,
                planned=trouble.survivors,
                warnings=trouble.warnings,
            )
        elif n % 3 == 0:
            node = NodeReport(host, address, Verdict.IDLE, elapsed_s=0.3, gpus=gpus(0))
        elif n % 5 == 0:
            mine = process(
                4811,
                "python3 train.py --config /home/alice/experiments/llama/sweep-17.yaml",
                user="alice",
                rule="interpreter",
                age_s=93_000 + n,
                memory_mib=61_000,
            )
            node = NodeReport(
                host,
                address,
                Verdict.BUSY,
                elapsed_s=0.3,
                gpus=gpus(61_000, 20_000, 0),
                planned=(mine,),
                spared=SPARED,
                warnings=("GPU 2: MIG is on",),
            )
        else:
            node = NodeReport(
                host,
                address,
                Verdict.BUSY,
                elapsed_s=0.3,
                gpus=gpus(150_000),
                planned=workers(4000),
                spared=SPARED,
            )
        nodes.append(node)
    return RunReport(
        RUN_ID,
        "status",
        "inference-pool",
        "2026-01-31T02:00:00.000Z",
        "2026-01-31T02:00:00.600Z",
        tuple(nodes),
    )
