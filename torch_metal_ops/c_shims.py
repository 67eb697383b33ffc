"""What AOTInductor must be told to call the C shims directly, derived from the registered schemas."""

import torch
from torch._ops import OpOverload

_OPS = ("sdpa", "gather_qmv", "gated_delta_rule")

# How Inductor passes an argument of each schema type to a C shim.
_C_TYPES = {
    "Tensor": "AtenTensorHandle",
    "Optional[Tensor]": "AtenTensorHandle*",
    "int": "int64_t",
    "Optional[int]": "int64_t*",
    "float": "double",
    "Optional[float]": "double*",
    "bool": "int32_t",
}


def _declaration(op: OpOverload, device: str) -> str:
    schema = op._schema
    inputs = [f"{_C_TYPES[str(argument.type)]} {argument.name}" for argument in schema.arguments]
    outputs = [f"AtenTensorHandle* ret{i}" for i in range(len(schema.returns))]
    name = schema.name.split("::")[1]
    return f"AOTITorchError aoti_torch_{device}_{name}({', '.join(inputs + outputs)})"


def c_shims(device: str) -> dict[OpOverload, list[str]]:
    """The C declaration of each op's shim for one device.

    Args:
        device: ``"cpu"`` or ``"mps"``.

    Returns:
        A dict for Inductor's ``aot_inductor.custom_ops_to_c_shims``.

    Raises:
        ValueError: any other device.

    Example:
        >>> c_shims("cpu")[torch.ops.metal.gated_delta_rule.default][0].split("(")[0]
        'AOTITorchError aoti_torch_cpu_gated_delta_rule'
    """
    if device not in ("cpu", "mps"):
        raise ValueError(f"c_shims: device must be 'cpu' or 'mps', got {device!r}. No other device has shims.")
    ops = (getattr(torch.ops.metal, name).default for name in _OPS)
    return {op: [_declaration(op, device)] for op in ops}


def _all_devices() -> dict[OpOverload, list[str]]:
    mps = c_shims("mps")
    return {op: declarations + mps[op] for op, declarations in c_shims("cpu").items()}


#: For Inductor's ``aot_inductor.custom_ops_to_c_shims``: every op, with the declaration of each device's shim.
#: Generated code declares them all and calls the one of the device it is for; an uncalled one needs no symbol.
#:
#: The process that loads the package must import torch_metal_ops first: without it the load fails with "undefined
#: symbol: aoti_torch_cpu_<op>".
custom_ops_to_c_shims: dict[OpOverload, list[str]] = _all_devices()
