"""Advice by the cause of a defect: what to look at in code that fails on programs with a feature."""

from collections.abc import Iterator, Mapping, Sequence

from lockstep.properties.defects.cause import MORE_DIGITS

MOST = 3
_SAVED = (
    "A checkpoint must hold all that the next step reads: parameters, optimizer state, counters and the loss scale. "
    "After a load, no bucket, view or master weight may hold values from before it."
)
_JOINED = (
    "A rank that has run out of micro-batches must still take part in each collective of the others until all have. "
    "Check what it sends meanwhile, and by how many ranks the sum is divided."
)
_BOUND = (
    "The caller puts other tensors in the place of those that your class has seen. Look up parameters and gradients "
    "when you use them; do not keep old tensors, views or addresses."
)
_WRITTEN = (
    "The caller writes other values into the parameters. Copies of them, such as shards or master weights, must take "
    "these over before they are used again."
)
_FORWARDS = (
    "A forward need not have a backward of its own. Do not count forwards, and do not wait for a backward after each."
)
_BACKWARDS = (
    "Several backwards follow one forward. Prepare for each backward anew, and do not count a parameter as done "
    "because an earlier one has reached it."
)
_RAISED = (
    "The caller catches an error in the middle of a step and goes on. Reset flags, counters and handles with `try` "
    "and `finally`, and clear what a broken backward has left."
)
# By needs of `properties.defects.needs`, the more telling first.
ADVICE: Mapping[str, str] = {
    "different hook orders": (
        "Backward may reach the parameters in another order on each rank. Fix the contents and the order of buckets "
        "at construction, and launch them in that order on every rank."
    ),
    "idle rank": (
        "A rank that uses no parameter gets no hook call in that backward. It must still take part in every "
        "collective, with zeros, at the latest when the synchronization is finished."
    ),
    "parameters that are trained again": (
        "A parameter may begin to train after construction. Look at `requires_grad` before each backward, and give it "
        "a hook and a place in a bucket then."
    ),
    "freeze": (
        "A parameter may be frozen after construction. Look at `requires_grad` before each backward, and do not wait "
        "for the hook of a frozen parameter."
    ),
    "frozen parameters": (
        "A frozen parameter has no gradient and no hook. Leave it out of buckets and counters, and skip it where "
        "gradients are divided, clipped or stepped."
    ),
    "unused": (
        "A parameter that a rank does not use has no gradient there, and its hook is not called. Send zeros for it, "
        "and let all ranks decide together whether anyone has used it."
    ),
    "drop window": (
        "The caller zeroes gradients before they were synchronized. Clear what your class has kept of them: buffers, "
        "counters, and buckets that wait."
    ),
    "end inside": (
        "The caller ends the synchronization inside `no_sync`. Nothing may be sent then, and no hook may be expected."
    ),
    "nested": (
        "One `no_sync` stands inside another. The end of the inner one must restore the state before it, not switch "
        "the synchronization on."
    ),
    "accumulation": (
        "Inside `no_sync`, gradients stay local and add up. The next backward outside must send their whole sum, "
        "once, and count hooks from the start."
    ),
    "several backwards that synchronize": _BACKWARDS,
    "several backwards": _BACKWARDS,
    "several forwards before a backward": (
        "Several forwards come before one backward. Do not count forwards, and begin a synchronization when backward "
        "begins."
    ),
    "what is synchronized on top of what was synchronized before": (
        "Gradients are added to an average of before. The mean of equal values is that value, so the whole gradient "
        "can be averaged again."
    ),
    "idle step": (
        "A step comes while some gradients are None, or all. Skip these parameters, but let every rank call the "
        "same collectives."
    ),
    "step without rank 0": _JOINED,
    "others stay": _JOINED,
    "joins": _JOINED,
    "clipped overflow": (
        "A gradient is infinite or nan when it is clipped. Check the norm, and the factor that is made of it, for "
        "such values on every rank."
    ),
    "overflow": (
        "A gradient overflows on one rank. Let all ranks know before any of them skips the step or changes the loss "
        "scale."
    ),
    "clip": (
        "The norm is that of all averaged gradients. Clip after the synchronization, add up the squares of all shards "
        "and dtypes before the root, and use one factor on every rank."
    ),
    "loss scale": (
        "The loss is scaled, so gradients are too until they are unscaled. Divide by the scale once, before clipping "
        "and stepping, on every rank."
    ),
    "save and load": _SAVED,
    "go back": _SAVED,
    "go on": _SAVED,
    "save, load": _SAVED,
    "set hyperparameters": (
        "The caller changes values in `param_groups`. Read them at each step, and hand them on to every optimizer "
        "that your class holds."
    ),
    "several optimizers": (
        "Several optimizers share the parameters of one model. Keep the state of each apart, and do not take one "
        "optimizer's parameters for all."
    ),
    "groups": (
        "The optimizer has several parameter groups. Keep each parameter in its group, with the options of that "
        "group, where parameters are split, saved or stepped."
    ),
    "masters": (
        "Parameters in 16 bits are stepped as master weights. All that writes the one must write the other, a load "
        "and a broadcast too."
    ),
    "swap weights": _WRITTEN,
    "write": _WRITTEN,
    "replace": _BOUND,
    "move": _BOUND,
    "copy gradients": _BOUND,
    "zero late": (
        "Gradients are zeroed between a forward and its backward. Do not keep references to `p.grad` from the "
        "forward; look it up when its hook is called."
    ),
    "raise": _RAISED,
    "infer": (
        "Tensors that are made under `torch.inference_mode` cannot be used by autograd later. Keep none of a forward "
        "that ran in it."
    ),
    "evaluate": _FORWARDS,
    "measure": _FORWARDS,
    "drop loss": _FORWARDS,
    "eval mode": (
        "A model in evaluation mode can be trained. Ask `torch.is_grad_enabled()` if a backward may follow, not "
        "`module.training`."
    ),
    "direct": (
        "The caller calls the wrapped module instead of the wrapper. Bind the synchronization to hooks of the "
        "parameters, not to the wrapper's forward."
    ),
    "outsiders": (
        "The process group is only a part of the world. Pass it to every collective, divide by its size, and give "
        "`src` and `dst` as ranks of the whole world."
    ),
    "tied": ("One tensor has two names. Go by tensors and not by names, so that it is counted, sent and stepped once."),
    "buffers": (
        "Buffers are no parameters: they have no gradients, and may hold integers. Synchronize them by themselves, "
        "each in its own dtype."
    ),
    "empty": ("A parameter may have no elements. Skip it only on all ranks, and wait for nothing that it would send."),
    "scalars": ("A parameter may have no dimension. Use `numel()`, and neither `len()` nor `shape[0]`."),
    "layout": (
        "A tensor may have gaps or another order in memory. Copy it by its elements; a flat view is right only if it "
        "is contiguous."
    ),
    "outside": (
        "A module reads a parameter of another module. Gather a parameter before its first use, wherever that is."
    ),
    "several dtypes": (
        "Parameters have several dtypes. Make buckets and flat tensors for each dtype, and do not let one dtype "
        "decide for all."
    ),
    "parameters in float64": (
        "A parameter is in float64. Make buffers, norms and constants in the dtype of the gradient, not in torch's "
        "default."
    ),
    "an odd number of ranks": (
        "The number of ranks is odd. Look at the padding and the splitting of what is shared out."
    ),
    "cap": (
        "A bucket cap only decides which gradients travel together. Try a parameter as large as the cap and one that "
        "is larger, and send the last bucket even if it is not full."
    ),
    "another order than that of registration": (
        "Backward need not reach the parameters in the order in which they were registered. Find a gradient's place "
        "by its parameter, not by the time of its hook."
    ),
    "metric": (
        "The caller runs collectives of its own between yours. Launch yours at the same places of the program on "
        "every rank, not when a rank happens to be ready."
    ),
    "act alone": ("One rank acts alone, for example to evaluate. Call no collective in what only some ranks do."),
    "duplicate": (
        "The caller copies the model. The copy must not share hooks, buffers or gradients with it, and must stay what "
        "it was."
    ),
    "early optimizer": (
        "The optimizer is made before the model is wrapped, and holds its parameters. Keep these tensors; do not put "
        "others in their place."
    ),
    "take gradients": (
        "The loss is made of gradients that the caller takes with `torch.autograd.grad`. Such a call is no backward "
        "of the step, so nothing may begin or end with it."
    ),
    "read parameters": (
        "The loss reads parameters outside the forward. They must be whole there, and these contributions belong to "
        "the same mean."
    ),
    "zero grad": (
        "Gradients may become None, or tensors of zeros, before each backward. Do not keep references to old ones, "
        "and start counters and buffers anew."
    ),
}
# What is not told beside what is more telling.
_CONTAINS: Mapping[str, tuple[str, ...]] = {
    "idle rank": ("unused",),
    "different hook orders": ("another order than that of registration",),
    "drop window": ("accumulation", "zero grad"),
    "end inside": ("accumulation", "nested"),
    "nested": ("accumulation",),
    "parameters that are trained again": ("freeze", "frozen parameters", "zero grad"),
    "clipped overflow": ("overflow", "clip", "loss scale"),
    "overflow": ("loss scale",),
}


def advice(needs: Sequence[str]) -> Iterator[str]:
    """The sentences for a defect with these needs, three at most; none if nothing useful is known."""
    contained = {each for need in needs for each in _CONTAINS.get(need, ())}
    told = [_rounding(need) for need in needs if need.startswith(MORE_DIGITS)]
    told += [words for need, words in ADVICE.items() if need in needs and need not in contained]
    yield from list(dict.fromkeys(told))[:MOST]


def _rounding(need: str) -> str:
    """The advice for values that a narrow dtype rounds on the way."""
    dtype = need.removeprefix(MORE_DIGITS)
    return (
        f'Gradients are rounded to {dtype} on the way. Send them in their own dtype, or claim "wire_dtype": "{dtype}".'
    )
