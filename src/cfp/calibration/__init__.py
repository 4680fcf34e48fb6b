"""Calibration measures the links of a mesh whose devices are here.

    probe       the programs: chains of collectives along mesh axes
    calibrate   which sizes run, and the links that come of their times

`profile` compiles and runs them.
"""

from cfp.calibration.calibrate import calibrate

__all__ = ["calibrate"]
