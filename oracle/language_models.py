"""Language models as far as cost goes: how many elements each of their tensors has, and what activations take."""

from dataclasses import dataclass
from fractions import Fraction

from lockstep.oracle.checks import check_at_least


@dataclass(frozen=True)
class Transformer:
    """A decoder as GPT-2 has it: biases everywhere, two layer norms per block and one at the end, tied embeddings."""

    blocks: int
    hidden: int
    heads: int
    vocabulary: int = 50257
    context: int = 1024

    def tensors(self) -> tuple[tuple[str, int], ...]:
        """Name and elements of each tensor, in the order in which they are registered."""
        wide, tensors = self.hidden, [("wte", self.vocabulary * self.hidden), ("wpe", self.context * self.hidden)]
        for block in range(self.blocks):
            own = {
                "ln_1.weight": wide,
                "ln_1.bias": wide,
                "attn.c_attn.weight": 3 * wide * wide,
                "attn.c_attn.bias": 3 * wide,
                "attn.c_proj.weight": wide * wide,
                "attn.c_proj.bias": wide,
                "ln_2.weight": wide,
                "ln_2.bias": wide,
                "mlp.c_fc.weight": 4 * wide * wide,
                "mlp.c_fc.bias": 4 * wide,
                "mlp.c_proj.weight": 4 * wide * wide,
                "mlp.c_proj.bias": wide,
            }
            tensors += [(f"h.{block}.{name}", count) for name, count in own.items()]
        return (*tensors, ("ln_f.weight", wide), ("ln_f.bias", wide))


MODELS = {
    "gpt2": Transformer(12, 768, 12),
    "gpt2-medium": Transformer(24, 1024, 16),
    "gpt2-large": Transformer(36, 1280, 20),
    "gpt2-xl": Transformer(48, 1600, 25),
}
RECOMPUTED = ("none", "attention", "all")


def activations(model: Transformer, micro_batch: int, sequence: int, recomputed: str = "none") -> Fraction:
    """Bytes that the forward of one micro-batch leaves for its backward, in 16 bits: an approximation.

        none        s b h (34 + 5 a s / h) per block      s: sequence, b: micro-batch, h: hidden, a: heads
        attention   34 s b h
        all         2 s b h

    Embeddings, the last layer norm and logits are left out. Accumulation needs no more: each micro-batch frees its own.
    Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, table 2.
    """
    check_at_least(1, micro_batch=micro_batch, sequence=sequence)
    if recomputed not in RECOMPUTED:
        raise ValueError(f"recomputed {recomputed!r}: give one of {', '.join(RECOMPUTED)}")
    each = sequence * micro_batch * model.hidden
    scores = Fraction(5 * model.heads * sequence, model.hidden)
    per_element = {"none": 34 + scores, "attention": Fraction(34), "all": Fraction(2)}
    return model.blocks * each * per_element[recomputed]
