"""Resets on real NVIDIA GPUs: what no simulated node can show (driver, device majors, pinned memory).

Run by `make test-gpu`, as root. Everything happens in a process namespace of its own on this very
machine, with a real sshd in it: gpufleet kills python3, and must not meet the test runner. No GPU is
reset and no setting changed.
"""
