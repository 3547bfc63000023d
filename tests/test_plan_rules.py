"""Each promise of what may be killed, and what never: one test per promise, named by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.model import ProcessLine
from gpufleet.observation import parse_observation
from gpufleet.plan import make_plan
from gpufleet.policy import Policy
from tests.building import (
    COMPUTE,
    FABRIC_MANAGER,
    OWN,
    PERSISTENCED,
    SELF,
    Proc,
    answer,
    changed,
    fates,
    killed,
    observe,
    plan_of,
)

ID = "1f" * 32
CONTAINER = f"/system.slice/docker-{ID}.scope"
POD = f"/kubepods/besteffort/pod0a1b2c3d-1111-2222-3333-444455556666/{ID}"
SERVICE = "/system.slice/agent.service"
PTY = 34816


def fate(proc: Proc, *others: Proc, policy: Policy | None = None, **how: object) -> str:
    """ "kill RULE", "spare RULE", or "" for no candidate."""
    return fates(plan_of(proc, *others, policy=policy, **how)).get(proc.pid, "")


# --- candidates ---------------------------------------------------------------------------------


def test_workload_is_found_anywhere_in_the_command_line() -> None:
    assert "kill workload" == fate(Proc(60, "/opt/py --module sglang.launch_server"))


def test_b10_a_long_command_line_is_searched_to_its_end() -> None:
    assert "kill workload" == fate(Proc(60, ["/opt/" + "x" * 5000, "--module", "sglang"]))


def test_patterns_see_blanks_between_arguments() -> None:
    policy = Policy(workload=(r"launch --port 30000\b",), interpreters=())
    assert "kill workload" == fate(Proc(60, "launch --port 30000"), policy=policy)


def test_an_interpreter_is_found_in_the_command_line() -> None:
    assert "kill interpreter" == fate(Proc(60, "python3 train.py", exe="/opt/bin/wrapper"))


@pytest.mark.parametrize("exe", ["/opt/conda/bin/python3.11", "/usr/bin/python3.10 (deleted)"])
def test_an_interpreter_is_found_by_its_resolved_executable(exe: str) -> None:
    assert "kill interpreter" == fate(Proc(60, "/opt/conda/bin/python -m vllm", exe=exe))


def test_a_retitled_worker_is_found_by_its_executable() -> None:
    assert "kill interpreter" == fate(Proc(60, ["VLLM::EngineCore\0\0"], exe="/usr/bin/python3.12"))


def test_the_mark_of_a_deleted_executable_is_not_searched() -> None:
    assert "" == fate(Proc(60, "x", exe="/a (deleted)"), policy=Policy(interpreters=("deleted",)))


def test_workload_patterns_do_not_search_the_executable() -> None:
    assert "" == fate(Proc(60, "server", exe="/opt/sglang/server"))


def test_the_short_name_of_a_process_makes_no_candidate() -> None:
    assert "" == fate(Proc(60, "/opt/server", comm="sglang"))


@pytest.mark.parametrize(
    "device", ["/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap1"]
)
def test_a_holder_is_a_candidate_by_its_descriptors(device: str) -> None:
    assert "kill holder" == fate(Proc(60, "/opt/trainer", devices=(device,)))


def test_a_process_without_a_command_line_is_not_searched_by_its_short_name() -> None:
    assert "" == fate(Proc(60, [""], comm="sglang", exe="/opt/server"))


def test_a_holder_is_a_candidate_by_its_mappings_alone() -> None:
    assert "kill holder" == fate(Proc(60, "/opt/trainer", maps=("/dev/nvidia0",)))


def test_charged_memory_is_never_a_reason_to_kill() -> None:
    assert "" == fate(Proc(60, "/opt/other"), apps="60, 40000 MiB, GPU-1\n")


def test_fuser_alone_is_never_a_reason_to_kill() -> None:
    whole = changed(answer([Proc(60, "/opt/other")], samples=1), "1/fuser", " 60\n", "0")
    assert {} == fates(make_plan(parse_observation(whole), Policy()))


def test_a_file_in_a_folder_called_dev_nvidia_is_never_a_reason_to_kill() -> None:
    log = "/home/alice/dev/nvidia-bench/out.log"
    assert "" == fate(Proc(60, "/opt/postgres", devices=(log,)))


def test_b08_a_zombie_is_no_candidate() -> None:
    assert "" == fate(Proc(60, "python3 x", state="Z", comm="python3", exe="/usr/bin/python3.10"))


def test_workload_and_interpreters_replace_the_defaults() -> None:
    policy = Policy(workload=("llama",), interpreters=())
    assert "" == fate(Proc(60, "python3 -m sglang"), policy=policy)
    assert "kill workload" == fate(Proc(60, "/opt/llama"), policy=policy)


def test_other_processes_are_no_candidates() -> None:
    quiet = [Proc(60, "/usr/sbin/rsyslogd -n"), Proc(61, "/usr/bin/redis-server *:6379")]
    assert {50: "spare gpu-daemon", 51: "spare gpu-daemon"} == fates(
        plan_of(FABRIC_MANAGER, PERSISTENCED, *quiet)
    )


# --- never --------------------------------------------------------------------------------------

EVERYTHING = Policy(workload=("",), interpreters=(".*",))


def test_pid_1_is_never_killed_even_if_it_holds_a_gpu() -> None:
    init = Proc(1, "python3 sglang", ppid=0, cuda=True, start=1)
    assert "spare init" == fates(plan_of(own=[init, *OWN[1:]]))[1]


def test_kernel_threads_are_never_killed() -> None:
    assert "spare kernel" == fate(Proc(9, kernel=True, ppid=2, comm="x"), policy=EVERYTHING)


def test_the_loops_own_ancestry_is_never_killed() -> None:
    own = [
        OWN[0],
        Proc(900, "/opt/dropbear python3 sglang", exe="/opt/dropbear"),
        Proc(901, "/opt/session sglang", ppid=900, exe="/opt/session"),
        Proc(800, "timeout 99 python3 sglang", ppid=901, session=901),
        Proc(SELF, "/bin/sh -s python3 sglang", ppid=800, session=901),
    ]
    expected = {1: "spare init"} | dict.fromkeys([800, 900, 901, SELF], "spare own")
    assert expected == fates(plan_of(own=own, policy=EVERYTHING))


def test_what_the_look_itself_started_is_never_killed() -> None:
    child = Proc(950, "find self/ns/pid sglang", ppid=SELF, session=SELF)
    orphan = Proc(951, "timeout 30 nvidia-smi sglang", ppid=1, session=SELF)
    detached = Proc(952, "/opt/x sglang", ppid=950, session=952)
    assert {"spare own"} == {fate(p, child) for p in (child, orphan, detached)}


def test_gpufleets_own_processes_on_its_own_node_are_never_killed() -> None:
    node = observe(Proc(60, "python3 sglang"), Proc(61, "python3 sglang"))
    plan = make_plan(node, Policy(), spare_pids=frozenset({60}))
    assert {60: "spare own", 61: "kill workload"} == fates(plan)


@pytest.mark.parametrize(
    "name", ["sshd", "sshd-session", "sshd-auth", "/usr/lib/openssh/sshd-session"]
)
def test_no_sshd_of_any_form_is_ever_killed(name: str) -> None:
    exe = name if "/" in name else f"/usr/sbin/{name}"
    assert "spare sshd" == fate(Proc(60, "sshd: sglang [priv]", exe=exe, cuda=True))


def test_a_program_that_only_calls_itself_sshd_is_workload() -> None:
    assert "kill holder" == fate(Proc(60, "sshd: root@pts/0", exe="/home/u/miner", cuda=True))


@pytest.mark.parametrize("shell", ["bash", "zsh", "dash", "fish", "tcsh", "ksh93"])
def test_a_shell_that_leads_a_session_on_a_terminal_is_never_killed(shell: str) -> None:
    assert "spare shell" == fate(Proc(60, f"{shell} --rcfile=sglang", tty=PTY))


@pytest.mark.parametrize(
    "args", [["bash", "-c", "while :; do sglang; done"], ["bash", "sglang.sh"]]
)
def test_a_shell_that_runs_the_workload_in_a_terminal_of_its_own_is_workload(
    args: list[str],
) -> None:
    """As `tmux new -d` starts it: it leads its session there, and it is the respawner."""
    assert "kill workload" == fate(Proc(60, args, exe="/usr/bin/bash", tty=PTY))


def test_a_login_shell_without_a_terminal_is_never_killed() -> None:
    assert "spare shell" == fate(Proc(60, ["-bash", "sglang"], exe="/usr/bin/bash", session=5))


@pytest.mark.parametrize("exe", ["/tmp/.x/xmrig", "/usr/bin/python3.12"])
def test_what_computes_and_only_calls_itself_a_login_shell_is_workload(exe: str) -> None:
    miner = Proc(60, ["-bash"], exe=exe, cuda=True)
    assert fate(miner).startswith("kill ")
    assert "spare shell" == fate(replace(miner, exe="/usr/bin/bash"))


def test_a_shell_written_in_python_is_a_shell_all_the_same() -> None:
    shell = Proc(60, "/usr/bin/python3 /usr/bin/xonsh", exe="/usr/bin/python3.12", tty=PTY)
    assert "spare shell" == fate(shell)
    assert "kill interpreter" == fate(replace(shell, tty=0))
    assert "kill interpreter" == fate(replace(shell, args="python3 /usr/bin/xonsh train.xsh"))


def test_a_shell_in_a_loop_without_a_terminal_is_workload() -> None:
    loop = ["bash", "-c", "while :; do python3 -m sglang.launch_server; done"]
    assert "kill workload" == fate(Proc(60, loop))


def test_a_script_on_a_terminal_that_does_not_lead_the_session_is_workload() -> None:
    assert "kill workload" == fate(Proc(60, "bash serve-sglang.sh", session=59, tty=PTY))


@pytest.mark.parametrize(
    "name",
    [
        *("cron", "crond", "atd", "slurmd", "slurmstepd", "docker", "dockerd", "containerd"),
        *("containerd-shim", "containerd-shim-runc-v2", "conmon", "kubelet", "k3s", "agetty"),
        *("amazon-ssm-agent", "ssm-agent-worker", "ssm-document-worker", "ssm-session-worker"),
        *("systemd", "crio", "supervisord"),
    ],
)
def test_carriers_are_never_killed(name: str) -> None:
    assert fate(Proc(60, f"/usr/bin/{name} sglang", cuda=True)).startswith("spare")


# --- 1. GPU daemons -----------------------------------------------------------------------------


def test_fabric_manager_is_never_killed() -> None:
    assert "spare gpu-daemon" == fate(FABRIC_MANAGER)
    assert "spare gpu-daemon" == fate(Proc(50, "/usr/bin/nv-fabricmanager", cuda=True))


@pytest.mark.parametrize(
    "name",
    [
        *("nvidia-persistenced", "nv-fabricmanager", "nvlsm", "nvidia-imex", "nv-hostengine"),
        *("dcgm-exporter", "nvsm", "nvsm_core", "nvsm-api", "nvsmd", "nvidia-cuda-mps-control"),
        *("nvidia-cuda-mps-server", "nvidia-gridd", "Xorg", "gdm3", "lightdm", "sddm"),
        *("nvidia-device-plugin", "gpu-feature-discovery", "nvidia-smi", "nvidia-debugdump"),
        *("nvtop", "dcgmi", "gnome-shell"),
    ],
)
def test_gpu_daemons_are_never_killed_wherever_they_run(name: str) -> None:
    assert "spare gpu-daemon" == fate(Proc(60, f"{name} --sglang python3", cuda=True))


def test_the_bug_report_script_is_never_killed() -> None:
    args = ["/bin/bash", "/usr/bin/nvidia-bug-report.sh"]
    assert "spare gpu-daemon" == fate(Proc(60, args, exe="/usr/bin/bash", cuda=True))


def test_whatever_runs_in_a_gpu_daemons_unit_is_never_killed() -> None:
    unit = "/system.slice/nvidia-dcgm.service"
    assert "spare gpu-daemon" == fate(Proc(60, "/opt/launcher sglang", cgroup=unit, cuda=True))


def test_a_daemon_whose_file_was_replaced_by_an_upgrade_is_never_killed() -> None:
    exe = "/usr/bin/nv-fabricmanager (deleted)"
    assert "spare gpu-daemon" == fate(Proc(50, "nv-fabricmanager -c x", exe=exe, cuda=True))


def test_a_users_program_named_like_a_daemon_is_workload() -> None:
    bench = Proc(60, "/home/u/nv-fabricmanager-bench", comm="nv-fabricmanage", cuda=True)
    assert "kill holder" == fate(bench)


@pytest.mark.parametrize("script", ["nvsm_train.py", "nvsmall.py", "X.py"])
def test_a_users_script_named_like_a_daemon_is_workload(script: str) -> None:
    assert "kill interpreter" == fate(Proc(60, f"python3 /home/u/{script}", cuda=True))


@pytest.mark.parametrize("script", ["supervisor.py", "apt_bench.py", "google_eval.py"])
def test_a_users_script_named_like_a_system_program_is_workload(script: str) -> None:
    assert "kill interpreter" == fate(Proc(60, f"python3 /home/u/{script}"))


@pytest.mark.parametrize(
    "args",
    [
        "/home/u/train --log nv-fabricmanager",
        "python3 train.py nvidia-persistenced",
        "python3 /home/u/nvidia-persistenced/train.py",
        "nv-fabricmanager",
    ],
)
def test_a_daemons_name_in_a_command_line_protects_nothing(args: str) -> None:
    exe = "/usr/bin/python3.10" if args.startswith("python3") else "/home/u/train"
    assert fate(Proc(60, args, exe=exe, cuda=True)).startswith("kill")


def test_a_users_unit_named_like_a_daemons_protects_nothing() -> None:
    mine = "/user.slice/user-1000.slice/user@1000.service/app.slice/nvidia-dcgm.service"
    assert "kill holder" == fate(Proc(60, "/home/u/train", cgroup=mine, cuda=True))


# --- 2. services --------------------------------------------------------------------------------


@pytest.mark.parametrize("cgroup", [SERVICE, CONTAINER, POD])
def test_a_service_without_a_gpu_shelters_its_interpreters(cgroup: str) -> None:
    assert "spare service" == fate(Proc(60, "python3 /opt/agent.py", cgroup=cgroup))


@pytest.mark.parametrize("typed", ["bash", "bash -i", "bash --norc", "zsh -f"])
def test_a_shell_that_runs_nothing_on_a_terminal_has_a_person_behind_it(typed: str) -> None:
    shell = Proc(60, typed, session=59, tty=PTY, devices=("/dev/nvidia0",))
    assert "spare shell" == fate(shell)
    assert "kill holder" == fate(replace(shell, tty=0))


@pytest.mark.parametrize(
    "cgroup", ["/user.slice/user-1000.slice/session-3.scope", "/", "/system.slice/run-u5.scope"]
)
def test_a_session_shelters_nothing(cgroup: str) -> None:
    assert "kill interpreter" == fate(Proc(60, "python3 x.py", cgroup=cgroup))


def test_a_users_own_service_shelters_nothing() -> None:
    mine = "/user.slice/user-1000.slice/user@1000.service/app.slice/x.service"
    assert "kill interpreter" == fate(Proc(60, "python3 x.py", cgroup=mine))


def test_a_service_does_not_shelter_named_workload() -> None:
    assert "kill workload" == fate(Proc(60, "python3 -m sglang", cgroup=SERVICE))


@pytest.mark.parametrize("cgroup", [SERVICE, CONTAINER, POD])
def test_a_gpu_holder_lifts_the_shelter_of_its_own_service(cgroup: str) -> None:
    holder = Proc(61, "/opt/engine", cgroup=cgroup, cuda=True)
    assert "kill interpreter" == fate(Proc(60, "python3 helper.py", cgroup=cgroup), holder)


def test_named_workload_that_only_has_devices_open_lifts_the_shelter_too() -> None:
    server = Proc(61, "sglang::http", cgroup=CONTAINER, devices=("/dev/nvidiactl",))
    assert "kill interpreter" == fate(Proc(60, "python3 helper.py", cgroup=CONTAINER), server)


def test_a_gpu_holder_does_not_lift_the_shelter_of_another_service() -> None:
    holder = Proc(61, "/opt/engine", cgroup="/system.slice/engine.service", cuda=True)
    assert "spare service" == fate(Proc(60, "python3 x.py", cgroup=SERVICE), holder)


def test_a_gpu_daemon_does_not_lift_the_shelter_of_its_container() -> None:
    daemon = Proc(61, "/usr/bin/dcgm-exporter", cgroup=POD, cuda=True)
    assert "spare service" == fate(Proc(60, "python3 x.py", cgroup=POD), daemon)


def test_a_dead_holder_does_not_lift_the_shelter() -> None:
    dead = Proc(61, "x", comm="x", state="Z", cgroup=SERVICE, cuda=True)
    assert "spare service" == fate(Proc(60, "python3 x.py", cgroup=SERVICE), dead)


@pytest.mark.parametrize(
    "unit",
    [
        *("ssh", "sshd", "cron", "crond", "atd", "slurmd", "docker", "containerd", "kubelet"),
        *("k3s", "amazon-ssm-agent", "snap.amazon-ssm-agent.amazon-ssm-agent", "supervisor"),
        *("getty@tty1", "ssh@0-10.0.0.1:22-10.0.0.2:999", "serial-getty@ttyS0"),
    ],
)
def test_a_carriers_service_shelters_nothing(unit: str) -> None:
    cgroup = f"/system.slice/{unit}.service"
    assert "kill interpreter" == fate(Proc(60, "python3 job.py", cgroup=cgroup))


# --- 3. Python system programs ------------------------------------------------------------------

SYSTEM = [
    "/usr/bin/python3 /usr/bin/networkd-dispatcher --run-startup-triggers",
    "/usr/bin/python3 /usr/share/unattended-upgrades/unattended-upgrade-shutdown --wait-for-signal",
    "/usr/bin/python3 -s /usr/sbin/firewalld --nofork --nopid",
    "/usr/bin/python3 -Es /usr/sbin/tuned -l -P",
    "python3 -u /usr/sbin/waagent -daemon",
    "python3 -u bin/WALinuxAgent-2.9.1.1-py3.8.egg -run-exthandlers",
    "/usr/bin/python3 /usr/bin/fail2ban-server -xf start",
    "/usr/bin/python3 /usr/bin/cloud-init init",
    "/usr/bin/python3 /usr/bin/supervisord -n -c /etc/supervisor/supervisord.conf",
    "/usr/bin/python3 -m supervisor.supervisord",
    "/usr/bin/python3 /usr/bin/salt-minion",
    "/usr/bin/python3 /usr/bin/apt-listchanges --apt",
    "/usr/bin/python3 /usr/bin/dnf upgrade",
    "/usr/bin/python3 /usr/bin/yum update",
    "/usr/bin/python3 /usr/bin/do-release-upgrade",
    "/usr/bin/python3 /usr/bin/ansible-playbook site.yml",
    "/usr/bin/python3 /root/.ansible/tmp/ansible-tmp-1/AnsiballZ_apt.py",
    "python3 -X dev -W ignore -Im ansible playbook",
    "/usr/bin/python3 /usr/local/bin/jupyterhub -f x",
    "python3 -m jupyterhub.singleuser",
    "/usr/bin/python3 /usr/sbin/cephadm ls",
    "/usr/bin/python3 /usr/bin/ceph-crash",
    "python3 -m gpufleet.cli reset --hosts all",
    "python3 -Im gpufleet.cli reset --hosts all",
    "/opt/venv/bin/python3.12 /opt/venv/bin/gpufleet status",
    "/usr/bin/python3 /usr/bin/google_metadata_script_runner startup",
]


@pytest.mark.parametrize("args", SYSTEM)
@pytest.mark.parametrize("cgroup", ["/user.slice/user-0.slice/session-3.scope", "/"])
def test_b04_python_system_programs_are_never_killed_even_without_a_unit(
    args: str, cgroup: str
) -> None:
    assert "spare python-system" == fate(Proc(60, args, cgroup=cgroup))


def test_a_system_program_that_runs_a_red_hat_platform_python_is_never_killed() -> None:
    args = "/usr/libexec/platform-python /usr/bin/dnf upgrade"
    assert "spare python-system" == fate(Proc(60, args, exe="/usr/libexec/platform-python3.6"))


@pytest.mark.parametrize(
    "args",
    [
        "/usr/bin/python3 /usr/lib/ubuntu-advantage/apt_news.py",
        "/usr/bin/python3 /usr/lib/update-notifier/apt_check.py --human-readable",
        "/usr/bin/python3 /usr/lib/command-not-found -- sgl",
        "/usr/bin/python3 -Es /usr/bin/lsb_release -a",
        "/usr/bin/python3 /usr/bin/landscape-client --daemon",
        "/usr/bin/python3 /usr/bin/borg create ::nightly /srv/sglang",
        "/usr/bin/python3 /usr/sbin/sos report --batch",
        "/usr/bin/python3 /opt/aws/bin/cfn-hup",
        "/usr/libexec/platform-python3.6 /usr/libexec/rhsm-service",
        "/usr/bin/python3 -m glances -s",
    ],
)
def test_a_tool_of_the_system_written_in_python_is_never_killed(args: str) -> None:
    """Backups, reports and the distribution's own helpers: from cron or a login, no unit shelters them."""
    exe = "/usr/bin/python3.12"
    assert "spare python-system" == fate(Proc(60, args, exe=exe))


@pytest.mark.parametrize("script", ["apt_bench.py", "borg.py", "aa-train", "oci-train"])
def test_a_users_script_named_nearly_like_a_system_tool_is_workload(script: str) -> None:
    assert "kill interpreter" == fate(Proc(60, f"python3 /home/u/{script}"))


VIEWERS = ["/usr/bin/python3 /home/u/.local/bin/nvitop -m", "python3 -m gpustat -i"]


@pytest.mark.parametrize("args", VIEWERS)
def test_a_screen_of_gpus_written_in_python_is_never_killed(args: str) -> None:
    looking = ("/dev/nvidiactl", "/dev/nvidia0")
    assert "spare gpu-daemon" == fate(Proc(60, args, devices=looking, maps=("/dev/nvidiactl",)))


@pytest.mark.parametrize("args", VIEWERS)
def test_what_calls_itself_a_screen_of_gpus_and_computes_is_workload(args: str) -> None:
    assert "kill interpreter" == fate(Proc(60, args, cuda=True))


def test_a_system_program_that_maps_a_gpu_is_workload() -> None:
    args = "python3 /root/.ansible/tmp/x/AnsiballZ_command.py"
    assert "kill interpreter" == fate(Proc(60, args, cuda=True))


def test_a_system_program_that_only_has_a_device_open_stays_protected() -> None:
    args = "python3 /usr/local/bin/jupyterhub"
    assert "spare python-system" == fate(Proc(60, args, devices=("/dev/nvidiactl",)))


def test_a_system_program_that_another_process_of_its_unit_maps_for_stays_protected() -> None:
    hub = Proc(60, "python3 /usr/local/bin/jupyterhub", cgroup=SERVICE)
    kernel = Proc(61, "python3 -m ipykernel_launcher", ppid=60, cgroup=SERVICE, cuda=True)
    assert "spare python-system" == fate(hub, kernel)


@pytest.mark.parametrize(
    "args",
    [
        "python3 train.py --log /var/log/tuned",
        "python3 /home/u/firewalld/train.py",
        ["python3", "-c", "import train  # not /usr/sbin/tuned", "/usr/sbin/tuned"],
        "python3 train.py /usr/bin/ansible-playbook",
    ],
)
def test_a_system_programs_name_further_on_protects_nothing(args: str | list[str]) -> None:
    assert "kill interpreter" == fate(Proc(60, args))


PACKAGES = [
    "/usr/bin/apt-get install python3-pip",
    "/usr/bin/apt install python3-pip",
    "/usr/bin/aptitude install python3-pip",
    "/usr/bin/dpkg -i python3-pip.deb",
    "/usr/bin/rpm -U python3-pip.rpm",
    "/usr/bin/dnf5 install python3-pip",
    "/usr/bin/zypper install python3-pip",
    "/usr/bin/tdnf install python3-pip",
]


@pytest.mark.parametrize("args", PACKAGES)
def test_a_package_manager_that_installs_python_is_never_killed(args: str) -> None:
    assert fate(Proc(60, args)).startswith("spare ")


def test_what_a_package_manager_started_is_never_killed() -> None:
    dpkg = Proc(59, "/usr/bin/dpkg --configure -a")
    script = Proc(60, "/bin/sh /var/lib/dpkg/info/python3-pip.postinst", 59, "/usr/bin/dash")
    compiler = Proc(61, "/usr/bin/python3 /usr/bin/py3compile -p python3-pip", 60)
    assert [] == killed(plan_of(dpkg, script, compiler))


def test_what_waits_for_a_package_manager_is_never_killed() -> None:
    """An installer that is killed leaves dpkg without the one who tells it what comes next."""
    installer = Proc(60, "python3 /opt/site/install.py")
    assert "spare python-system" == fate(installer, Proc(61, "/usr/bin/apt-get -y upgrade", 60))


def test_a_gpu_holder_that_a_package_manager_started_is_workload() -> None:
    apt = Proc(59, "/usr/bin/apt-get upgrade")
    assert "kill holder" == fate(Proc(60, "/opt/miner", ppid=59, cuda=True), apt)
    assert "kill holder" == fate(Proc(60, "/opt/miner", ppid=59, devices=("/dev/nvidia0",)), apt)


def test_the_shell_around_an_ansible_module_is_never_killed() -> None:
    module = Proc(61, "/usr/bin/python3 /root/.ansible/tmp/t/AnsiballZ_copy.py", ppid=60)
    shell = Proc(60, ["/bin/sh", "-c", " ".join(module.argv)], exe="/usr/bin/dash")
    helper = Proc(62, "/usr/bin/selinux-helper python3", ppid=61)
    assert [] == killed(plan_of(shell, module, helper))


def test_a_package_manager_shelters_none_but_its_own_family() -> None:
    apt = Proc(59, "/usr/bin/apt-get upgrade", ppid=58, session=58)
    shell = Proc(58, "-bash", exe="/usr/bin/bash", tty=PTY)
    sibling = Proc(60, "python3 train.py", ppid=58, session=58)
    assert [60] == killed(plan_of(apt, shell, sibling))


# --- 4. bystanders ------------------------------------------------------------------------------

MENTIONS = [
    ("vim sglang.conf", "/usr/bin/vim.basic"),
    ("nano sglang.conf", "/usr/bin/nano"),
    ("emacs -nw sglang.py", "/usr/bin/emacs-gtk"),
    ("less sglang.log", "/usr/bin/less"),
    ("tail -f sglang.log", "/usr/bin/tail"),
    ("grep sglang /var/log/syslog", "/usr/bin/grep"),
    ("watch pgrep sglang", "/usr/bin/watch"),
    ("tmux new -s sglang", "/usr/bin/tmux"),
    ("SCREEN -S sglang", "/usr/bin/screen"),
    ("ssh gpu02 python3 -m sglang", "/usr/bin/ssh"),
    ("scp sglang.tgz gpu02:", "/usr/bin/scp"),
    ("rsync -a sglang/ gpu02:sglang", "/usr/bin/rsync"),
    ("git clone https://github.com/sgl-project/sglang", "/usr/bin/git"),
    ("git-remote-https origin https://x/sglang", "/usr/lib/git-core/git-remote-http"),
    ("su - sglang", "/usr/bin/su"),
    ("sudo -u sglang bash", "/usr/bin/sudo"),
    ("login -- sglang", "/usr/bin/login"),
    ("docker run --gpus all lmsysorg/sglang python3 -m sglang", "/usr/bin/docker"),
    ("podman logs sglang", "/usr/bin/podman"),
    ("kubectl logs sglang-0", "/usr/local/bin/kubectl"),
    ("crictl logs sglang", "/usr/local/bin/crictl"),
    ("journalctl -fu sglang", "/usr/bin/journalctl"),
    ("systemctl status sglang", "/usr/bin/systemctl"),
    ("conmon -n sglang", "/usr/bin/conmon"),
    ("containerd-shim-runc-v2 -id sglang", "/usr/bin/containerd-shim-runc-v2"),
    ("dockerd --label sglang", "/usr/bin/dockerd"),
    ("nginx: worker process sglang", "/usr/sbin/nginx"),
    ("haproxy -f sglang.cfg", "/usr/sbin/haproxy"),
    ("envoy -c sglang.yaml", "/usr/local/bin/envoy"),
    ("fluent-bit -i sglang", "/opt/fluent-bit/bin/fluent-bit"),
    ("promtail -config.file=sglang.yml", "/usr/bin/promtail"),
    ("telegraf --config sglang.conf", "/usr/bin/telegraf"),
    ("node_exporter --collector.systemd.unit-include=sglang", "/usr/bin/node_exporter"),
    (
        "prometheus-node-exporter --collector.systemd.unit-include=sglang",
        "/usr/bin/prometheus-node-exporter",  # Debian's and Ubuntu's package
    ),
    ("hx /srv/sglang/server.py", "/usr/bin/hx"),
    ("mcedit sglang.conf", "/usr/bin/mc"),
    ("/usr/share/code/code /srv/sglang", "/usr/share/code/code"),
    ("lnav /var/log/sglang.log", "/usr/bin/lnav"),
    ("ag python3 /srv", "/usr/bin/ag"),
    ("pgrep -f sglang", "/usr/bin/pgrep"),
    ("htop -F sglang", "/usr/bin/htop"),
    ("lsof +D /srv/sglang", "/usr/bin/lsof"),
    ("tcpdump -w sglang.pcap port 30000", "/usr/bin/tcpdump"),
    ("zellij attach sglang", "/usr/local/bin/zellij"),
    ("script -a sglang.log", "/usr/bin/script"),
    ("autossh -M0 -N -L 30000:localhost:30000 sglang-gateway", "/usr/lib/autossh/autossh"),
    ("sshfs store:/sglang /mnt/sglang", "/usr/bin/sshfs"),
    ("runuser -u sglang -- bash", "/usr/sbin/runuser"),
    ("socat TCP-LISTEN:3000,fork TCP:sglang:30000", "/usr/bin/socat1"),
    ("nvcc -c /srv/sglang/kernel.cu", "/usr/local/cuda/bin/nvcc"),
    ("buildkitd --root /var/lib/sglang", "/usr/bin/buildkitd"),
    ("skopeo copy docker://lmsysorg/sglang dir:/tmp/x", "/usr/bin/skopeo"),
    ("svlogd -tt /var/log/sglang", "/usr/bin/svlogd"),
    ("logger -t sglang", "/usr/bin/logger"),
    ("juicefs mount redis://store /mnt/sglang", "/usr/local/bin/juicefs"),
    ("mount-s3 sglang-models /mnt/models", "/usr/bin/mount-s3"),
    ("sha256sum /srv/sglang/model.safetensors", "/usr/bin/sha256sum"),
    ("s5cmd cp s3://sglang/model /srv", "/usr/local/bin/s5cmd"),
    ("systemd-inhibit --who=sglang sleep 60", "/usr/bin/systemd-inhibit"),
]


@pytest.mark.parametrize(("args", "exe"), MENTIONS)
def test_a_bystander_that_only_mentions_the_workload_is_never_killed(args: str, exe: str) -> None:
    assert fate(Proc(60, args, exe=exe, uid=1000, session=59)).startswith("spare ")


def test_a_bystander_that_holds_a_gpu_is_workload() -> None:
    assert "kill workload" == fate(Proc(60, "tail -f sglang.log", devices=("/dev/nvidia0",)))


@pytest.mark.parametrize("exe", ["/home/u/vim-train", "/home/u/tail.py", "/opt/mygrep"])
def test_a_program_named_like_a_bystander_is_workload(exe: str) -> None:
    assert "kill workload" == fate(Proc(60, f"{exe} sglang", exe=exe))


def test_a_shell_is_no_bystander() -> None:
    assert "kill workload" == fate(Proc(60, "sh /opt/run-sglang.sh"))


# --- 5. monitors --------------------------------------------------------------------------------

CTL = ("/dev/nvidiactl", "/dev/nvidia0")


@pytest.mark.parametrize("cgroup", [SERVICE, CONTAINER, POD])
def test_a_monitor_in_a_service_is_never_killed(cgroup: str) -> None:
    assert "spare monitor" == fate(Proc(60, "/opt/agent", cgroup=cgroup, devices=CTL))


def test_a_monitor_written_in_python_is_never_killed() -> None:
    monitor = Proc(60, "python3 agent.py", cgroup=SERVICE, devices=CTL, maps=("/dev/nvidiactl",))
    assert "spare monitor" == fate(monitor)


@pytest.mark.parametrize("mapped", ["/dev/nvidia3", "/dev/nvidia-uvm"])
def test_what_maps_a_gpu_is_no_monitor(mapped: str) -> None:
    assert "kill holder" == fate(
        Proc(60, "/opt/agent", cgroup=SERVICE, devices=CTL, maps=(mapped,))
    )


def test_what_is_charged_with_memory_is_no_monitor() -> None:
    proc = Proc(60, "/opt/agent", cgroup=SERVICE, devices=CTL)
    assert "kill holder" == fate(proc, apps="60, 500 MiB, GPU-1\n")


def test_named_workload_is_no_monitor() -> None:
    assert "kill workload" == fate(Proc(60, "/opt/sglang-router", cgroup=SERVICE, devices=CTL))


def test_a_holder_in_a_session_is_no_monitor() -> None:
    assert "kill holder" == fate(Proc(60, "/opt/agent", devices=CTL))


def test_a_monitor_does_not_lift_the_shelter_of_its_service() -> None:
    monitor = Proc(61, "/opt/agent", cgroup=SERVICE, devices=CTL)
    assert "spare service" == fate(Proc(60, "python3 x.py", cgroup=SERVICE), monitor)


# --- 6. protect ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "proc"),
    [
        ("trainer", Proc(60, "/opt/trainer", cuda=True)),
        ("/opt/trainer", Proc(60, "/opt/trainer", cuda=True)),
        ("job.py", Proc(60, "python3 /home/u/job.py", cuda=True)),
        ("unit:sglang", Proc(60, "sglang", cgroup="/system.slice/sglang.service", cuda=True)),
        ("unit:sglang.service", Proc(60, "sglang", cgroup="/system.slice/sglang.service")),
        ("unit:session-9.scope", Proc(60, "sglang", cgroup="/user.slice/u/session-9.scope")),
        ("user:alice", Proc(60, "sglang", uid=1000, cuda=True)),
    ],
)
def test_what_protect_names_is_never_killed(entry: str, proc: Proc) -> None:
    assert "spare protect" == fate(proc, policy=Policy(protect=("other", entry)))


@pytest.mark.parametrize(
    ("entry", "proc"),
    [
        ("trainer", Proc(60, "/opt/trainer2 trainer", cuda=True)),
        ("trainer", Proc(60, "/opt/x trainer", cuda=True)),
        ("trainer", Proc(60, "trainer", exe="/home/u/miner", cuda=True)),
        ("/opt/trainer", Proc(60, "/opt/trainer", exe="/home/u/miner", cuda=True)),
        ("unit:sglang", Proc(60, "sglang", cgroup="/system.slice/sglang2.service")),
        ("user:alice", Proc(60, "sglang alice", uid=1001, cuda=True)),
        ("alice", Proc(60, "sglang", uid=1000)),
    ],
)
def test_protect_matches_whole_names_only(entry: str, proc: Proc) -> None:
    assert fate(proc, policy=Policy(protect=(entry,))).startswith("kill")


def test_a_protected_user_is_known_by_number_where_names_are_cut() -> None:
    policy = Policy(protect=("user:averylongname",))
    more = {"user.averylongname": ("4321\n", "0")}
    assert "spare protect" == fate(Proc(60, "sglang", uid=4321), policy=policy, more=more)


def test_a_protected_user_is_never_killed_when_users_could_not_be_read() -> None:
    whole = answer([Proc(60, "sglang", uid=1000)], samples=1)
    unread = parse_observation(changed(whole, "1/uids", "", "124"))
    assert not make_plan(unread, Policy(protect=("user:alice",))).may_act


# --- launchers, order, jobs, blindness ----------------------------------------------------------


def test_the_launcher_of_a_holder_goes_with_it_and_first() -> None:
    launcher = Proc(90, "/opt/launch", session=90, cgroup="/")
    holder = Proc(60, "/opt/engine", ppid=90, session=90, cgroup="/", cuda=True)
    plan = plan_of(launcher, holder)
    assert {90: "kill ancestor", 60: "kill holder"} == fates(plan)
    assert [90, 60] == killed(plan)


def test_a_launcher_in_another_session_but_the_same_unit_goes_too() -> None:
    launcher = Proc(90, "/opt/launch", cgroup=CONTAINER)
    holder = Proc(60, "/opt/engine", ppid=90, cgroup=CONTAINER, cuda=True)
    assert "kill ancestor" == fate(launcher, holder)


def test_a_dead_parent_is_no_launcher() -> None:
    """A leader that has ended while its threads live on is still its children's parent."""
    dead = Proc(90, comm="x", exe="", state="Z")
    assert "" == fate(dead, Proc(60, "/opt/engine", ppid=90, session=90, cuda=True))


def test_a_parent_in_another_session_and_unit_stays() -> None:
    parent = Proc(90, "/opt/desktop", cgroup="/system.slice/desktop.service")
    assert "" == fate(parent, Proc(60, "/opt/engine", ppid=90, cuda=True))


def test_a_parent_outside_any_unit_is_not_in_the_same_one() -> None:
    parent = Proc(90, "/opt/desktop", cgroup="/")
    assert "" == fate(parent, Proc(60, "/opt/engine", ppid=90, cgroup="/", cuda=True))


def test_launchers_end_at_a_service_manager() -> None:
    user = "/user.slice/user-1000.slice/user@1000.service/app.slice/x.service"
    manager = Proc(80, "/usr/lib/systemd/systemd --user", cgroup=user)
    holder = Proc(60, "/opt/engine", ppid=80, cgroup=user, cuda=True)
    assert [60] == killed(plan_of(manager, holder))


@pytest.mark.parametrize(
    "stop",
    [
        Proc(80, "-bash", exe="/usr/bin/bash", tty=PTY, session=80),
        Proc(80, "slurmstepd: [1.0]", exe="/usr/sbin/slurmstepd", session=80),
        Proc(80, "sudo /opt/engine", session=80),
        Proc(80, "python3 /usr/bin/supervisord", session=80),
        Proc(80, "ssm-document-worker x", exe="/usr/bin/ssm-document-worker", session=80),
    ],
)
def test_launchers_end_at_what_is_never_killed(stop: Proc) -> None:
    above = Proc(70, "/opt/above", session=80)
    launcher = Proc(90, "/opt/launch", ppid=80, session=80)
    holder = Proc(60, "/opt/engine", ppid=90, session=80, cuda=True)
    below = Proc(80, stop.args, ppid=70, exe=stop.exe, tty=stop.tty, session=80)
    assert [90, 60] == killed(plan_of(above, below, launcher, holder))


def test_a_shell_that_a_person_opened_inside_another_is_never_killed() -> None:
    """`sudo su`, or `bash` typed in bash: on the terminal, but not the session's leader."""
    login = Proc(80, "-bash", exe="/usr/bin/bash", tty=PTY)
    inner = Proc(81, "bash", ppid=80, session=80, tty=PTY)
    holder = Proc(60, "/opt/engine", ppid=81, session=80, tty=PTY, cuda=True)
    assert [60] == killed(plan_of(login, inner, holder))


def test_only_holders_take_their_launchers_with_them() -> None:
    launcher = Proc(90, "/opt/launch")
    assert "" == fate(launcher, Proc(60, "python3 x.py", ppid=90, session=90))


def test_ancestors_are_signalled_before_their_descendants_whatever_their_pids() -> None:
    tree = [
        Proc(300, "python3 a.py"),
        Proc(200, "python3 b.py", ppid=300),
        Proc(100, "python3 c.py", ppid=200),
        Proc(250, "python3 d.py", ppid=300),
    ]
    assert [300, 200, 250, 100] == killed(plan_of(*tree))


JOB = "/system.slice/slurmstepd.scope/job_123/step_0/user/task_0"


@pytest.mark.parametrize(
    ("cgroup", "name", "step"),
    [
        (JOB, "job 123", "squeue -j 123  # after asking alice: scancel 123"),
        (POD, "pod 0a1b2c3d", "kubectl drain"),
    ],
)
def test_a_schedulers_job_keeps_the_node_from_being_acted_on(
    cgroup: str, name: str, step: str
) -> None:
    plan = plan_of(Proc(60, "python3 -m sglang", uid=1000, cgroup=cgroup, cuda=True))
    (job,) = plan.jobs
    assert (False, True, True) == (
        plan.may_act,
        job.name.startswith(name),
        job.next_step.startswith(step),
    )
    assert "alice" == job.user


def test_a_job_named_many_times_is_told_once() -> None:
    plan = plan_of(*(Proc(p, "python3 x", cgroup=JOB) for p in (60, 61, 62)))
    assert 1 == len(plan.jobs)


def test_jobs_kill_acts_in_spite_of_jobs() -> None:
    plan = plan_of(Proc(60, "python3 x", cgroup=JOB), policy=Policy(jobs="kill"))
    assert (True, (), [60]) == (plan.may_act, plan.jobs, killed(plan))


def test_a_pod_that_only_has_sheltered_processes_is_no_job() -> None:
    assert () == plan_of(Proc(60, "python3 controller.py", cgroup=POD)).jobs


def test_what_was_not_seen_is_not_acted_on() -> None:
    plan = plan_of(Proc(60, "python3 x"), uid=1000)
    assert (False, True) == (plan.may_act, bool(plan.blind))


def test_the_plan_is_of_the_newest_sample() -> None:
    whole = answer([Proc(60, "python3 x")], second=[Proc(61, "python3 x")])
    assert [61] == killed(make_plan(parse_observation(whole), Policy()))


# --- what people are told -----------------------------------------------------------------------


def test_every_decision_says_by_which_rule_and_why() -> None:
    plan = plan_of(FABRIC_MANAGER, Proc(60, "python3 -m sglang", cuda=True, uid=1000))
    line = plan.kill[0].line("KILL")
    expected = ProcessLine(
        60,
        "alice",
        "session-3.scope",
        "python3 -m sglang",
        "workload",
        "matches sglang",
        "KILL",
        950,
    )  # up for 1000 s, started 50 s after boot
    assert expected == line
    assert ("gpu-daemon", "GPU daemon") == (plan.spare[0].rule, plan.spare[0].why)
    assert all(d.why for d in (*plan.kill, *plan.spare))


def test_a_holder_is_told_with_its_devices() -> None:
    plan = plan_of(Proc(60, "/opt/x", devices=("/dev/nvidia10", "/dev/nvidia2", *COMPUTE)))
    assert "holds /dev/nvidia0, /dev/nvidia2 and 3 more" == plan.kill[0].why


def test_what_is_told_of_a_process_holds_no_secret_and_no_control_character() -> None:
    nasty = Proc(
        60,
        ["python3", "--api-key", "hunter2", "\x1b[2J"],
        exe="/opt/\x1b[31m/python3.10",
        cgroup="/user.slice/u/\x1b[31m.scope",
    )
    exe_only = Proc(61, "x", exe="/opt/\x1b[31m/python3.10")
    text = "".join(f"{d.line()}" for d in plan_of(nasty, exe_only).kill)
    told = [vars(d.line()) for d in plan_of(nasty, exe_only).kill]
    assert "hunter2" not in text
    assert not [v for line in told for v in line.values() if isinstance(v, str) and "\x1b" in v]


# --- found by those who tried to break it -------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        "postgres: sglang sglang 10.0.0.1(5432) idle",
        "/usr/sbin/mysqld --datadir=/srv/sglang",
        "redis-server /etc/redis/sglang.conf",
        "tar czf /backup/sglang.tgz /srv",
        "gcc -I/usr/include/python3.11 -c x.c",
        "gdb /usr/bin/python3.11 4711",
        "mount.nfs4 nas:/sglang /srv/sglang",
    ],
)
def test_databases_compilers_and_copies_that_mention_a_pattern_live(args: str) -> None:
    exe = "/usr/bin/" + args.split(maxsplit=1)[0].rstrip(":").rsplit("/", 1)[-1]
    assert "spare bystander" == fate(Proc(60, args, exe=exe))


@pytest.mark.parametrize("carrier", ["pbs_mom", "condor_starter", "nomad", "gitlab-runner"])
def test_batch_systems_outlive_the_jobs_that_they_carry(carrier: str) -> None:
    parent = Proc(80, carrier, exe=f"/usr/sbin/{carrier}", session=80)
    assert [60] == killed(plan_of(parent, Proc(60, "/opt/e", ppid=80, session=80, cuda=True)))


def test_a_slurm_job_outside_its_control_group_is_known_by_its_step() -> None:
    unit = "/system.slice/slurmd.service"
    step = Proc(80, "slurmstepd: [123.batch]", exe="/usr/sbin/slurmstepd", cgroup=unit)
    job = Proc(60, "python3 train.py", ppid=80, uid=1000, cgroup=unit, cuda=True)
    assert ["job 123"] == [job.name for job in plan_of(step, job).jobs]


@pytest.mark.parametrize(
    "script", ["/home/u/nvidia-smi", "/home/u/supervisor.py", "/x/apt_bench.py"]
)
def test_a_users_script_with_a_daemons_name_is_workload(script: str) -> None:
    assert "kill interpreter" == fate(Proc(60, f"python3 {script}", cgroup="/"))


def test_a_protected_user_is_spared_while_no_name_can_be_looked_up() -> None:
    unnamed = Proc(60, "sglang", uid=4321)
    more = {"user.alice": ("", "0")}
    assert "spare protect" == fate(unnamed, policy=Policy(protect=("user:alice",)), more=more)


def test_an_owner_in_which_was_killed_shelters_nothing_any_more() -> None:
    observation = parse_observation(answer([Proc(60, "python3 x.py", cgroup=SERVICE)], samples=1))
    owner = observation.last.processes[60].owner
    assert [] == killed(make_plan(observation, Policy()))
    assert [60] == killed(make_plan(observation, Policy(), hit_before=frozenset({owner})))


def test_a_killed_command_is_not_sheltered_in_a_new_container() -> None:
    again = parse_observation(answer([Proc(60, "python3 x.py", cgroup=CONTAINER)], samples=1))
    assert [] == killed(make_plan(again, Policy()))
    assert [60] == killed(make_plan(again, Policy(), killed_commands=frozenset({"python3 x.py"})))


@pytest.mark.parametrize("exe", ["/bin/busybox", "/usr/bin/nu", "/opt/odd-shell"])
def test_a_login_shell_is_known_by_its_dash_whatever_it_is(exe: str) -> None:
    login = Proc(80, "-sh", exe=exe, session=80)
    assert [60] == killed(plan_of(login, Proc(60, "/opt/e", ppid=80, session=80, cuda=True)))
