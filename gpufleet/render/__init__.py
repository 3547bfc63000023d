"""What a person or a program sees. Text in, text out: no I/O here but a stream that was given."""
