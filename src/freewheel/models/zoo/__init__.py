"""A small zoo of models by name, for demonstrations and benchmarks."""

from __future__ import annotations

from freewheel.models.zoo.base import models
from freewheel.models.zoo.lenet import lenet
from freewheel.models.zoo.mlp import mlp
from freewheel.models.zoo.pair_cnn import pair_cnn
from freewheel.models.zoo.resnet import resnet8
from freewheel.models.zoo.tinygpt import tinygpt

__all__ = ["lenet", "mlp", "models", "pair_cnn", "resnet8", "tinygpt"]
