"""/proc/PID/cgroup → who started a process, by the name that its own tools know it by."""

from __future__ import annotations

import pytest

from gpufleet.observation import Owner, parse_owner

ID = "1f" * 32
ID2 = "2e" * 32
UID = "0a1b2c3d-1111-2222-3333-444455556666"
UID_ = UID.replace("-", "_")
BURSTABLE = "/kubepods.slice/kubepods-burstable.slice"
NOBODY = Owner()


def service(name: str) -> Owner:
    return Owner("service", name)


DOCKER = Owner("container", ID, "docker")
POD = Owner("pod", UID)
JOB = Owner("job", "123")

LINES = [
    # services
    ("0::/system.slice/tuned.service", service("tuned.service")),
    (
        "0::/system.slice/system-getty.slice/getty@tty1.service",
        service("getty@tty1.service"),
    ),
    ("0::/system.slice/sglang@3.service/workers/0", service("sglang@3.service")),
    ("0::/system.slice/a.service/b.service", service("b.service")),
    ("0::/system.slice/a b\\x2dc.service", service("a b\\x2dc.service")),
    (
        "12:devices:/system.slice/tuned.service\n1:name=systemd:/system.slice/tuned.service\n0::/",
        service("tuned.service"),
    ),
    ("2:cpu,cpuacct:/\n1:name=systemd:/system.slice/x.service", service("x.service")),
    # a booted system container: its own system.slice below another folder
    ("0::/lxc.payload.web/system.slice/nginx.service", service("nginx.service")),
    # user services and sessions
    (
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/sglang.service",
        Owner("user-service", "sglang.service", "1000"),
    ),
    (
        "0::/user.slice/user-1000.slice/user@1000.service/init.scope",
        Owner("session", "init.scope"),
    ),
    ("0::/user.slice/user-1000.slice/user@1000.service", NOBODY),
    (
        "0::/user.slice/user-1000.slice/user@1000.service/system.slice/mine.service",
        Owner(
            "user-service", "mine.service", "1000"
        ),  # no user shelters himself by a folder's name
    ),
    ("0::/user.slice/user-0.slice/session-3.scope", Owner("session", "session-3.scope")),
    ("0::/init.scope", Owner("session", "init.scope")),
    ("0::/", NOBODY),
    ("", NOBODY),
    ("junk", NOBODY),
    # containers
    (f"0::/system.slice/docker-{ID}.scope", DOCKER),
    (f"0::/docker/{ID}", DOCKER),
    (f"11:devices:/docker/{ID}\n0::/system.slice/containerd.service", DOCKER),
    (f"0::/system.slice/docker.service/docker/{ID}", DOCKER),
    (f"0::/system.slice/docker-{ID}.scope/system.slice/nginx.service", DOCKER),
    (f"0::/machine.slice/libpod-{ID}.scope/container", Owner("container", ID, "podman")),
    (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
        Owner("container", ID, "podman"),
    ),
    (f"0::/system.slice/cri-containerd-{ID}.scope", Owner("container", ID, "containerd")),
    (f"0::/system.slice/nerdctl-{ID}.scope", Owner("container", ID, "containerd")),
    (f"0::/system.slice/crio-{ID}.scope", Owner("container", ID, "cri-o")),
    (f"0::/default/{ID}", Owner("container", ID, "")),
    # pods, both drivers, all classes of service
    (
        f"0::{BURSTABLE}/kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope",
        POD,
    ),
    (f"0::/kubepods.slice/kubepods-pod{UID_}.slice/crio-{ID}.scope", POD),
    (f"0::/kubepods/besteffort/pod{UID}/{ID}", POD),
    (f"0::/kubepods/pod{UID}/{ID}", POD),
    (
        f"0::/system.slice/containerd.service/kubepods-besteffort-pod{UID_}.slice:cri-containerd:{ID}",
        POD,
    ),
    (f"5:memory:/kubepods/pod{UID}/{ID}\n1:name=systemd:/kubepods/pod{UID}/{ID}\n0::/", POD),
    (
        "0::/kubepods/besteffort/pod" + "0a" * 16 + f"/{ID}",  # a static pod: a hash, no dashes
        Owner("pod", "0a" * 16),
    ),
    (f"0::/kubepods/pod{UID}/{ID}/docker/{ID2}", POD),
    (f"0::/docker/{ID}/kubelet/kubepods/pod{UID}/{ID2}", POD),
    # Slurm
    ("0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", JOB),
    ("0::/system.slice/slurmstepd.scope/job_123/step_batch/user/task_special", JOB),
    ("0::/system.slice/gpu07_slurmstepd.scope/job_123/step_0/user/task_0", JOB),
    ("4:memory:/slurm/uid_1000/job_123/step_0/task_0\n0::/system.slice/slurmd.service", JOB),
    ("4:memory:/slurm_gpu07/uid_1000/job_123/step_0", JOB),
    (f"4:freezer:/slurm/uid_0/job_123/step_0\n2:cpu:/docker/{ID}", JOB),
    ("0::/system.slice/slurmd.service", service("slurmd.service")),
    ("0::/system.slice/slurmstepd.scope/system", Owner("", "")),
]


@pytest.mark.parametrize(("text", "expected"), LINES)
def test_a_control_group_names_its_owner(text: str, expected: Owner) -> None:
    assert expected == parse_owner(text)


@pytest.mark.parametrize(
    "path",
    [
        "/user.slice/job_123/x",
        "/home/slurm/job_x",
        "/system.slice/kubepods.service",
        f"/x/{ID[:-1]}",
    ],
)
def test_what_only_resembles_a_job_a_pod_or_a_container_is_none(path: str) -> None:
    assert parse_owner(f"0::{path}").kind not in {"job", "pod", "container"}


@pytest.mark.parametrize(
    ("owner", "shown"),
    [
        (DOCKER, f"docker:{ID[:12]}"),
        (Owner("container", ID), f"container:{ID[:12]}"),
        (POD, f"pod:{UID}"),
        (JOB, "slurm job 123"),
        (service("tuned.service"), "tuned.service"),
        (NOBODY, ""),
    ],
)
def test_an_owner_is_shown_as_people_say_it(owner: Owner, shown: str) -> None:
    assert shown == str(owner)
