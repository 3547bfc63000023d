"""Side-by-side measurements against what people would use instead, on simulated nodes.

`make bench`, or `python -m bench [reset|fanout|startup|growth] [--quick]`. Nothing here is a test: a
time depends on the machine. Every part prints a table; what a peer can't do here is said in it.
"""
