"""The names behind the rules: which programs, scripts and units are what. Data, for reading.

All are matched whole against a program's own name (see `program_name`), a script's name or a unit's
name, never against a part of a command line: a user's `/home/u/nv-fabricmanager-bench` is workload.
`*` stands for any rest, where a family of programs shares a beginning.
"""

from __future__ import annotations

GPU_DAEMONS = (
    "nvidia-persistenced",
    "nv-fabricmanager",
    "nvlsm",
    "nvidia-imex",
    "nv-hostengine",
    "dcgm-exporter",
    "dcgmi",
    "nvsm*",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-gridd",
    "nvidia-device-plugin",
    "gpu-feature-discovery",
    "nvidia-mig-manager",
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-bug-report.sh",
    "nvtop",
    "Xorg",
    "X",
    "Xwayland",
    "gdm",
    "gdm3",
    "gdm-x-session",
    "lightdm",
    "sddm",
    "gnome-shell",
)
"""Killing one costs the node more than memory: without its fabric manager every later CUDA start
fails with error 802 though all GPUs read 0 MiB (facts on GPU nodes, NVSentinel#883)."""

GPU_DAEMON_UNITS = (
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
    "nvidia-imex.service",
    "nvidia-dcgm.service",
    "nvidia-dcgm-exporter.service",
    "dcgm.service",
    "nvsm*.service",
    "nvidia-gridd.service",
)

PYTHON_SYSTEM_SCRIPTS = (
    "networkd-dispatcher",
    "unattended-upgrade*",
    "apt",
    "apt-*",
    "apt_*",
    "aptd",
    "apt.systemd.*",
    "dnf*",
    "yum*",
    "do-release-upgrade",
    "update-manager*",
    "tuned",
    "tuned-*",
    "firewalld",
    "firewall-*",
    "fail2ban-*",
    "waagent*",
    "WALinuxAgent*",
    "google_metadata_*",
    "google_guest_*",
    "google_osconfig_*",
    "google-*-agent",
    "cloud-init*",
    "supervisord",
    "supervisorctl",
    "supervisor.supervisord",
    "certbot",
    "netplan",
    "salt-*",
    "ansible*",
    "AnsiballZ_*",
    "jupyterhub*",
    "cephadm*",
    "ceph-crash",
    "gpufleet",
)
"""Parts of the system that happen to be written in Python (unattended-upgrades#148, firewalld#75)."""

PACKAGE_SCRIPTS = (
    "unattended-upgrade*", "apt", "apt-*", "apt_*", "aptd", "apt.systemd.*", "dnf*", "yum*",
    "do-release-upgrade", "ansible*", "AnsiballZ_*",
)  # fmt: skip
PACKAGE_PROGRAMS = ("apt", "apt-get", "aptitude", "dpkg", "rpm", "dnf5", "tdnf", "zypper")
"""Package managers and Ansible: what they start, and what started them, belongs to their work. A
maintainer script killed half way leaves a node that installs nothing any more."""

BYSTANDERS = (
    "vi", "vim", "vim.*", "nvim", "nano", "emacs", "emacs-*", "emacsclient", "ed", "joe", "micro",
    "less", "more", "most", "tail", "head", "cat", "tee", "grep", "egrep", "fgrep", "rg", "watch",
    "tmux", "tmux: server", "screen", "ssh", "scp", "sftp", "rsync", "git", "git-*", "su", "sudo", "login",
    "docker", "podman", "nerdctl", "kubectl", "crictl", "ctr", "helm", "journalctl", "systemctl",
    "conmon", "containerd-shim*", "dockerd", "docker-proxy", "nginx", "haproxy", "envoy", "traefik",
    "caddy", "fluent-bit", "fluentd", "td-agent", "vector", "promtail", "alloy", "grafana-agent",
    "filebeat", "telegraf", "rsyslogd",
    "node_exporter", "node-exporter", "prometheus*", "otelcol*", "datadog-agent",
    "tar", "gzip", "zstd", "xz", "cp", "mv", "rm", "dd", "ls", "du", "find", "sed", "awk", "sort",
    "wget", "curl", "aria2c", "rclone", "s3fs", "gcsfuse", "mount", "mount.*", "inotifywait",
    "make", "ninja", "gcc", "g++", "cc1", "cc1plus", "ld", "clang", "gdb", "strace", "perf",
    "postgres", "mysqld", "mariadbd", "redis-server", "mongod", "memcached", "mosh-server",
)  # fmt: skip
"""Programs that mention a pattern because they show, edit, ship or proxy the workload."""

CARRIERS = (
    "sshd", "sshd-*", "cron", "crond", "anacron", "atd", "slurmd", "slurmstepd", "docker",
    "dockerd", "containerd", "containerd-shim*", "conmon", "crio", "kubelet", "k3s", "k3s-*",
    "amazon-ssm-agent", "ssm-*", "supervisord", "getty", "agetty",
    "systemd", "init", "(sd-pam)",
    "dropbear", "tailscaled", "teleport", "nomad", "pbs_mom", "sge_execd", "sge_shepherd",
    "sbatchd", "condor_*", "gitlab-runner", "Runner.Worker", "Runner.Listener", "lxc-start", "lxd",
    "runsvdir", "runsv", "s6-svscan", "s6-supervise",
)  # fmt: skip
"""What carries other people's processes: never killed, and no word on what it carries."""

CARRIER_UNITS = (
    "ssh.service", "sshd.service", "ssh@*.service", "sshd@*.service", "cron.service",
    "crond.service", "atd.service", "slurmd.service", "docker.service", "containerd.service",
    "crio.service", "kubelet.service", "k3s.service", "k3s-agent.service",
    "amazon-ssm-agent.service", "snap.amazon-ssm-agent.*", "supervisor.service",
    "supervisord.service", "getty@*.service", "serial-getty@*.service",
)  # fmt: skip
"""Services whose processes are somebody else's: their own python3 isn't sheltered by them."""

SHELLS = (
    "sh",
    "bash",
    "dash",
    "zsh",
    "fish",
    "ksh",
    "ksh93",
    "mksh",
    "tcsh",
    "csh",
    "ash",
    "rbash",
    "nu",
    "elvish",
    "xonsh",
    "pwsh",
)
