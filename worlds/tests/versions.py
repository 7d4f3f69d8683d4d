"""Which torch is installed: releases differ in what they have."""

import torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
