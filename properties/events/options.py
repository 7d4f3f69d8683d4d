"""The options that are drawn for a scenario, by name, and what must be claimed for each."""

from lockstep.properties.events.claimed import Claimed, always

# The caller's come first; they are drawn whatever is claimed, and masters are then left out.
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
}
# Those that the general draw leaves out, and why.
APART = {"cap": "a cap is drawn for the sizes of the model's parameters"}
