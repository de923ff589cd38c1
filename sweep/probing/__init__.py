"""The probe suite: drawing operators from the ranges of their parameters, judging what a route made of them, naming what is wrong.

`draw` chooses probes, `judge` gives the verdict on an output, `names` the kind of a fault, `shrink` makes it simpler, `reproducer` writes
it down so that it shows without this project, `blame` tells options apart. None of them knows a fault of one framework or runtime.
"""
