"""The border between the driver and the processes that hold a framework or a runtime, both sides of it."""
