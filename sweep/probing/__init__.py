"""The probe suite: drawing operators from the ranges of their parameters, judging what a route made of them, naming what is wrong.

`draw` chooses probes, `judge` gives the verdict on an output, `names` the kind of a fault, `blame` tells options apart, `reproducer` writes a
fault down so that it shows without this project. None of them knows a fault of a particular framework or runtime.
"""
