"""Definitions of a script for code that shards only plain layers.

The model consists of plain layers, and pieces on the ranks are assembled, as in `properties.ranks.layers` and
`properties.ranks.pieces`.
"""

MODEL = '''

shapes, embeddings = {}, set()  # of whole parameters, by name


def in_a_layer(name, p, embedded):
    """A plain layer whose weight is the parameter, if there is one."""
    shapes[name] = p.shape
    embeddings.update([name] * embedded)
    if p.dim() == 2:
        layer = nn.Embedding(*p.shape) if embedded else nn.Linear(p.shape[1], p.shape[0], bias=False)
    elif p.dim() == 1 and len(p) % 2 == 0:
        layer = nn.LayerNorm(len(p), eps=0.0, bias=False)
    else:
        return p
    layer.weight = p
    return layer


def weight(held):
    return held.weight if isinstance(held, nn.Module) else held


def weight_read(name, held):
    """The weight, bit for bit, by the forward of its layer."""
    if not isinstance(held, nn.Module):
        return held
    shape, dtype = shapes[name], next(held.parameters()).dtype
    if len(shape) == 1:
        signs = torch.ones(shape, dtype=dtype)
        signs[1::2] = -1
        return held(signs[None])[0] * signs
    if name in embeddings:
        return held(torch.arange(shape[0]))
    return held(torch.eye(shape[1], dtype=dtype)).T
'''

WHOLE = '''

def whole(name, piece):
    """The pieces of all ranks laid together; None if some rank has none."""
    pieces = [None] * dist.get_world_size()
    dist.all_gather_object(pieces, piece)
    if any(each is None for each in pieces) or all(each.shape == shapes[name] for each in pieces):
        return piece
    there = [each for each in pieces if each.numel()]
    for way in range(there[0].dim()):
        try:
            if (laid := torch.cat(there, way)).shape == shapes[name]:
                return laid
        except RuntimeError:  # they do not fit in this way
            pass
    return torch.cat([each.reshape(-1) for each in pieces])[: shapes[name].numel()].reshape(shapes[name])


def whole_of_each(values):
    return {name: whole(name, value) for name, value in values.items()}
'''
