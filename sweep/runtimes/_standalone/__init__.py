"""The shortest program that runs a deployed file, by runtime: what a reproducer consists of, so it imports nothing of this project.

DISTRIBUTION is the package it needs; `run(path, inputs, options)` gives the one output, float32 (N, ...), with the options of a runtime.
"""
