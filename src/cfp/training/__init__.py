"""Training runs a step over and over, with a plan or without, and prints nothing."""

from cfp.training.loop import TrainLoop, prepare, train
from cfp.training.summary import Training, TrainStep

__all__ = ["TrainLoop", "TrainStep", "Training", "prepare", "train"]
