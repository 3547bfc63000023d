"""What runs inside a simulated node; standard library and perl-base only.

Copied into each fleet's folder and run from there. Nothing in here may match `python3` or `sglang`
while it stays, nor hold a GPU's device file.
"""
