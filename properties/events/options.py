"""The options that are drawn for a scenario, by name, with the claims that each one needs."""

from lockstep.properties.events.claimed import Claimed, always

# The caller's options come first. They are drawn regardless of the claims; master weights are then removed if not
# claimed.
CALLERS = ("momentum", "weight decay", "groups", "loss scale", "adam", "long rate", "masters")
OPTIONS: dict[str, Claimed] = {
    **dict.fromkeys(CALLERS, always),
    "masters": lambda claims: claims.may_keep_masters,
    "zeros": always,
    "16 bits": lambda claims: claims.sixteen_bits,
    "buffers": lambda claims: claims.buffers is not None,
    "tied": lambda claims: claims.tied_parameters,
    "empty": lambda claims: claims.empty_parameters,
    "layout": lambda claims: claims.strided_parameters,
    "units": always,
    "outside": lambda claims: claims.outside_reads,
    "replicas": lambda claims: claims.replicas,
    "outsiders": lambda claims: claims.subgroups and claims.most_ranks > 1,
    "cap": lambda claims: claims.bucket_cap,
    # The caller's habits, see `oracle.caller`, and the order in which its model registers parameters.
    "early optimizer": lambda claims: claims.stage is None or claims.optimizer_before,
    "asked wrapper": lambda claims: claims.stands_for_model,
    "seeded": lambda claims: claims.leaves_random_numbers,
    "hooks": lambda claims: claims.callers_hooks,
    "hooks on modules": lambda claims: claims.module_hooks,
    "kept gradients": lambda claims: claims.final_in_hooks,
    "registered": always,
}
_HOOKS = "laws go on with programs in which parameters come later, and weigh memory, of which hooks take some"
# The options that the general draw leaves out, with the reason.
APART = {
    "cap": "a cap is drawn for the sizes of the model's parameters",
    "seeded": "to look at what comes next takes time after each event",
    "hooks": _HOOKS,
    "hooks on modules": _HOOKS,
    "kept gradients": _HOOKS,
    "registered": "laws on buckets and slices count parameters in the order in which they are given",
}
