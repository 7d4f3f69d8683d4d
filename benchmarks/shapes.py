"""Shapes of the tensors that kernels are measured on."""

import random

Shapes = list[tuple[int, ...]]
SMALLEST, LARGEST = 1 / 64, 8.0  # tensors of mixed sizes, as parts and multiples of their mean


def mixed(size: int, tensors: int) -> Shapes:
    """Shapes of tensors of very different sizes, of about ``size`` elements in all; each a multiple of 8 elements.

    Their logarithms are spread evenly, and the same in every run.
    """
    chance = random.Random(1)
    parts = [SMALLEST * (LARGEST / SMALLEST) ** chance.random() for _ in range(tensors)]
    return [(max(8, round(part * size / sum(parts) / 8) * 8),) for part in parts]


def even(size: int, tensors: int) -> Shapes:
    """Shapes of that many tensors of about ``size`` elements in all."""
    return [(max(1, size // tensors),)] * tensors


def gpt2(layers: int = 12, width: int = 768, words: int = 50257, places: int = 1024) -> Shapes:
    """The parameters of a GPT-2 (Radford et al., 2019); with these numbers the one of 124 million."""
    block: list[tuple[int, ...]] = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,)]
    block += [(width,), (width,), (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(words, width), (places, width), *(block * layers), (width,), (width,)]


def llama(layers: int = 16, width: int = 2048, inner: int = 8192, keys: int = 512) -> Shapes:
    """The parameters of a Llama with grouped queries and tied embeddings; with these numbers one of 1.2 billion."""
    block: list[tuple[int, ...]] = [(width, width), (keys, width), (keys, width), (width, width)]
    block += [(inner, width), (inner, width), (width, inner), (width,), (width,)]
    return [(128256, width), *(block * layers), (width,)]
