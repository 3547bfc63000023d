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

GPU_VIEWERS = ("nvitop", "gpustat", "nvidia-htop.py")
"""Screens of who uses which GPU that are written in Python: they ask the driver, as nvtop does."""

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
    "add-apt-repository",
    "software-properties-*",
    "apt_news.py",
    "esm_cache.py",
    "apt_check.py",
    "check-new-release*",
    "command-not-found",
    "lsb_release",
    "landscape-*",
    "ubuntu-advantage*",
    "ubuntu-drivers",
    "ufw",
    "aa-status",
    "aa-notify",
    "semanage",
    "setroubleshoot*",
    "subscription-manager",
    "rhsm-service",
    "rhsmcertd-worker",
    "insights-client*",
    "sos",
    "sosreport",
    "targetclid",
    "crm",
    "pcs",
    "pcsd",
    "cfn-hup",
    "cfn-init",
    "hibagent",
    "ocid",
    "oci-growfs",
    "oci-network-config",
    "borg",
    "borgmatic",
    "duplicity",
    "iotop",
    "dstat",
    "dool",
    "glances",
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
    # editors and pagers
    "vi", "vim", "vim.*", "nvim", "nano", "emacs", "emacs-*", "emacsclient", "ed", "joe", "micro",
    "hx", "helix", "kak", "ne", "jed", "mc", "mcedit", "gedit", "kate", "code", "code-insiders",
    "code-server", "code-tunnel", "cursor", "cursor-server", "zed", "zeditor", "sublime_text",
    "less", "more", "most", "bat", "batcat", "lnav", "multitail", "lv",
    # looking, searching, watching
    "tail", "head", "cat", "tee", "grep", "egrep", "fgrep", "rg", "ag", "ugrep", "watch", "viddy",
    "entr", "watchexec", "inotifywait", "ps", "pgrep", "pkill", "pidof", "pidwait", "killall", "pstree",
    "top", "htop", "btop", "atop", "lsof", "fuser", "ss", "netstat", "tcpdump", "tshark", "dumpcap",
    "gdb", "gdbserver", "strace", "ltrace", "perf", "bpftrace", "py-spy",
    # terminals, logins, other machines
    "tmux", "tmux: server", "tmate", "screen", "zellij", "dtach", "abduco", "ttyd", "script",
    "ssh", "autossh", "ssh-agent", "ssh-add", "ssh-keygen", "sshfs", "scp", "sftp", "sftp-server",
    "mosh-client", "mosh-server", "et", "etserver", "etterminal",
    "su", "sudo", "runuser", "doas", "pkexec", "login", "socat", "socat1", "nc", "nc.openbsd", "ncat",
    # versions, builds
    "git", "git-*", "gh", "hg", "svn", "make", "cmake", "ctest", "ninja", "bazel", "ccache", "sccache",
    "gcc", "g++", "gcc-*", "g++-*", "x86_64-linux-gnu-*", "aarch64-linux-gnu-*", "cc1", "cc1plus",
    "as", "ar", "ld", "ld.*", "lld", "collect2", "clang", "clang-*", "clang++", "clangd",
    "nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "nvlink", "rustc", "cargo",
    # containers and services
    "docker", "docker-compose", "docker-buildx", "podman", "nerdctl", "kubectl", "crictl", "ctr", "helm",
    "k9s", "buildah", "buildkitd", "buildctl", "skopeo", "runc", "crun", "conmon", "containerd-shim*",
    "dockerd", "docker-proxy", "journalctl", "systemctl", "systemd-cat", "systemd-run", "systemd-cgls",
    "systemd-cgtop", "systemd-inhibit", "machinectl", "busctl",
    # web proxies, log and metrics agents
    "nginx", "haproxy", "envoy", "traefik", "caddy", "apache2", "httpd", "cloudflared", "ngrok",
    "fluent-bit", "fluentd", "td-agent", "vector", "promtail", "alloy", "grafana-agent",
    "filebeat", "metricbeat", "telegraf", "rsyslogd", "syslog-ng", "logger", "svlogd", "multilog",
    "s6-log", "rotatelogs", "cronolog", "logrotate",
    "node_exporter", "node-exporter", "process-exporter", "prometheus*", "otelcol*", "datadog-agent",
    "netdata", "collectd", "zabbix_agentd", "zabbix_agent2",
    # files and their ways
    "tar", "gzip", "pigz", "bzip2", "pbzip2", "zstd", "xz", "lz4", "zip", "unzip", "7z", "7za", "pv",
    "cp", "mv", "rm", "dd", "ls", "du", "ncdu", "find", "fd", "fdfind", "tree", "stat", "sed", "awk",
    "gawk", "mawk", "sort", "wc", "cut", "jq", "yq", "diff", "cmp", "mkdir", "ln", "chmod", "chown",
    "md5sum", "sha1sum", "sha256sum", "sha512sum", "b3sum", "rsync",
    "wget", "curl", "aria2c", "axel", "lftp", "rclone", "restic", "kopia", "s5cmd", "azcopy", "aws",
    "s3fs", "gcsfuse", "mount-s3", "goofys", "geesefs", "juicefs", "blobfuse2", "ceph-fuse", "glusterfs",
    "fuse-overlayfs", "mount", "mount.*", "umount", "fusermount", "fusermount3", "smbd", "vsftpd",
    "proftpd", "in.tftpd", "virtiofsd",
    # databases
    "postgres", "mysqld", "mariadbd", "redis-server", "valkey-server", "mongod", "memcached",
    "etcd", "minio",
)  # fmt: skip
"""Programs that mention a pattern because they show, edit, build, ship, store or proxy the workload.
Some a person works in (a terminal's recorder, a file system's mount): killing one harms who uses it."""

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
