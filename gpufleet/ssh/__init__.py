"""SSH: the only code that imports fabric and paramiko. Everything else sees `transport.Transport`."""

from gpufleet.ssh.session import Session, connect

__all__ = ["Session", "connect"]
