"""What every test here takes for granted of the process that it runs in."""
import signal

# A shell that starts something in the background has it ignore SIGINT, which children inherit; the tests interrupt theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)
