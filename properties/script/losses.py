"""Losses of a micro-batch that the caller computes itself, in a script."""

from lockstep.properties.script.writer import Writer


def halved(writer: Writer, loss: str, first: bool) -> tuple[list[str], str]:
    """The lines before a forward with half the loss, and the whole loss.

    ``first``: the other half is computed before.
    """
    p = "tensors()[name]"
    # Computed from a copy, so that backward also uses the values read here.
    product = p if writer.scenario.probe == "linear" else f"({p} * 1).square() / 2"
    half = f"(torch.tensor(coefficients[{writer.role}][name], dtype={p}.dtype) * {product}).sum()"
    own = f"sum({half} for name in orders[{writer.role}][::-1])"
    return (["own = " + own], f"({loss} + own)") if first else ([], f"({loss} + {own})")


# The order of a forward that is used only for its gradients. It reads all other parameters too.
READ_TOO = "[*{0}{1}, *(n for n, p in tensors().items() if p.requires_grad and n not in {0})]"


def differentiated(writer: Writer, forward: str, batch: int) -> list[str]:
    """The lines for a loss made of gradients of a forward with respect to its coefficients, called "inputs".

    ``batch``: the number of the micro-batch.
    """
    own = writer.role
    lines = ["inputs = {", "    name: torch.tensor(values, dtype=tensors()[name].dtype, requires_grad=True)"]
    lines += [f"    for name, values in coefficients[{own}].items()", "}", f"loss = {forward}"]
    taken = f"torch.autograd.grad(loss, [inputs[name] for name in orders[{own}]], create_graph=True)"
    idle = not all(writer.scenario.order(batch, rank) for rank in range(writer.scenario.world_size))
    lines += [f"taken = {f'{taken} if orders[{own}] else ()' if idle else taken}"]
    products = f"zip([*orders[{own}]][::-1], taken[::-1])"
    lines += [f"taken = sum((inputs[name].detach() * gradient).sum() for name, gradient in {products})"]
    return lines
