"""Hugging Face transformers on our ops: attention, a static KV cache, and GGUF checkpoints that stay quantised.

Importing this module registers the attention implementation "metal_sdpa" in transformers' own registries, so any model
that supports them runs on :func:`torch_metal_ops.sdpa` with ``attn_implementation="metal_sdpa"``, its code unchanged.
"metal_attention" is the same one: transformers refuses any name with "sdpa" in it for models that torch's own cannot
serve (Gemma 2 with its softcap, gpt-oss with its sinks), and ours can.
:func:`from_gguf` builds such a model from a GGUF file without ever holding its dequantised weights, and
:func:`static_cache` gives it a cache that ``model.generate(..., cache=static_cache(model.config, 1024))`` decodes from.

Inference only: the ops have no derivative.
"""

import os
from typing import Any

import torch
from torch import Tensor, nn

import torch_metal_ops
from torch_metal_ops.integrations.gguf import GROUP_SIZE, affine_from_gguf, is_affine

try:
    import accelerate
    import gguf
    import numpy as np
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
    from transformers import modeling_gguf_pytorch_utils as gguf_support
    from transformers.cache_utils import Cache, CacheLayerMixin
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.utils import logging
except ImportError as error:
    raise ImportError(
        "torch_metal_ops.integrations.transformers: transformers, gguf and accelerate must be installed, "
        f"got: {error}. Install them: pip install 'torch-metal-ops[examples]'"
    ) from error

__all__ = ["IMPLEMENTATIONS", "QuantizedEmbedding", "QuantizedLinear", "from_gguf", "static_cache"]

IMPLEMENTATIONS = ("metal_sdpa", "metal_attention")


def _with_position_bias(position_bias: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return position_bias
    return position_bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else position_bias + mask


def metal_sdpa_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    seqused_k: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface on :func:`torch_metal_ops.sdpa`.

    The mask follows the rules of transformers' own "sdpa" implementation: one that is given says everything, the causal
    part and the window included, and covers the used part of the cache; none means plain causal attention.

    Args:
        module: the attention layer that calls.
        query: ``[B, Hq, Lq, D]``. key, value: ``[B, Hkv, Lk, D]``, or a whole static cache with ``seqused_k``.
        attention_mask: bool (True means attend) or float, ``[B, 1, Lq, used keys]``, or None.
        dropout: must be 0.0, so a model in training mode with attention dropout is a NotImplementedError.
        scaling, softcap, sliding_window: as in sdpa; s_aux: its sinks.
        is_causal: None asks the module.
        position_bias: added to the scaled scores, beside the mask.
        seqused_k: ``[B]``, from the cache of :func:`static_cache`.

    Returns:
        ``[B, Lq, Hq, D]``, and None for the attention weights, which are never in memory.
    """
    Lq = query.shape[2]
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal) and attention_mask is None
    if attention_mask is not None:
        key, value = key[:, :, : attention_mask.shape[-1]], value[:, :, : attention_mask.shape[-1]]
    elif Lq == 1 and seqused_k is None:  # one query with no cache length stands behind every key
        key, value = (key[:, :, -sliding_window:], value[:, :, -sliding_window:]) if sliding_window else (key, value)
        causal = False
    if position_bias is not None:
        attention_mask = _with_position_bias(position_bias[..., : key.shape[2]], attention_mask)
    out = torch_metal_ops.sdpa(
        query,
        key,
        value,
        attention_mask,
        dropout,
        causal,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
        seqused_k=seqused_k,
        sliding_window=sliding_window if causal else None,
        softcap=softcap or 0.0,
        sinks=s_aux,
    )
    return out.transpose(1, 2), None


for name in IMPLEMENTATIONS:
    AttentionInterface.register(name, metal_sdpa_attention)
    AttentionMaskInterface.register(name, sdpa_mask)


class StaticLayer(CacheLayerMixin):
    """One layer's keys and values in buffers of fixed size, with the length in use as a tensor for ``seqused_k``.

    A model hands its cache the keyword arguments of the attention call to come (transformers' paged cache uses them
    too); that is how the length reaches the kernel, which reads no more of the buffers than is filled.
    """

    is_croppable = False
    keys: Tensor
    values: Tensor
    seqused_k: Tensor

    def __init__(self, max_length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.max_length = max_length
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device = key_states.device
        self.batch_size, heads, _, head_size = key_states.shape
        self.keys = key_states.new_empty(self.batch_size, heads, self.max_length, head_size)
        self.values = value_states.new_empty(self.batch_size, heads, self.max_length, value_states.shape[-1])
        self.seqused_k = torch.zeros(self.batch_size, dtype=torch.int32, device=self.device)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, kwargs: dict[str, Any], **others: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, stop = self.length, self.length + key_states.shape[2]
        if stop > self.max_length:
            raise ValueError(
                f"static_cache: max_length must hold prompt and answer, got {self.max_length} for {stop} tokens. "
                "Make a longer cache."
            )
        self.keys[:, :, start:stop] = key_states
        self.values[:, :, start:stop] = value_states
        self.length = stop
        self.seqused_k.fill_(stop)
        kwargs["seqused_k"] = self.seqused_k
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.max_length

    def reset(self) -> None:
        self.length = 0


def static_cache(config: PretrainedConfig, max_length: int) -> Cache:
    """A KV cache of fixed size for a model whose attention implementation is "metal_sdpa" or "metal_attention".

    Memory is taken once, at the first token; decoding never copies or grows it. Layers with a sliding window keep all
    ``max_length`` tokens too, and read those in the window.

    Args:
        config: the model's.
        max_length: tokens to hold, prompt and answer together.

    Raises:
        ValueError: another attention implementation, which would not know the length in use.
        NotImplementedError: layers that are not attention (Mamba, gated delta networks).
    """
    config = config.get_text_config(decoder=True)
    if config._attn_implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"static_cache: the model's attention must be one of {', '.join(IMPLEMENTATIONS)}, "
            f'got {config._attn_implementation}. Load it with attn_implementation="metal_sdpa".'
        )
    other = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if other:
        raise NotImplementedError(
            f"static_cache: every layer must be full or sliding attention, got {', '.join(sorted(other))}. "
            "Use transformers' DynamicCache."
        )
    return Cache(layers=[StaticLayer(max_length) for _ in range(config.num_hidden_layers)])


class QuantizedLinear(nn.Module):
    """``x @ W.T + bias`` with W quantised: gather_qmv with one expert.

    Args:
        packed, scales, biases: W ``[N, K]`` as :func:`torch_metal_ops.quantize_affine` returns it.
        group_size: weights along K that share a scale.
        bias: ``[N]``, or None.

    Example:
        >>> weight = torch.randn(64, 128)
        >>> linear = QuantizedLinear(*torch_metal_ops.quantize_affine(weight, bits=4, group_size=32), group_size=32)
        >>> linear(torch.randn(2, 5, 128)).shape
        torch.Size([2, 5, 64])
    """

    def __init__(
        self, packed: Tensor, scales: Tensor, biases: Tensor, group_size: int, bias: Tensor | None = None
    ) -> None:
        super().__init__()
        self.group_size = group_size
        self.packed = nn.Buffer(packed.unsqueeze(0))
        self.scales = nn.Buffer(scales.unsqueeze(0))
        self.biases = nn.Buffer(biases.unsqueeze(0))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def out_features(self) -> int:
        return self.packed.shape[1]

    @property
    def in_features(self) -> int:
        return self.scales.shape[2] * self.group_size

    def forward(self, x: Tensor) -> Tensor:
        only_expert = x.new_zeros(x.shape[:-1], dtype=torch.int32)
        y = torch_metal_ops.gather_qmv(x, self.packed, self.scales, self.biases, only_expert, self.group_size)
        return y if self.bias is None else y + self.bias

    def rows(self, indices: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows of W at ``indices``, dequantised in float32 and then rounded to ``dtype``."""
        packed, scales, biases = (t[0][indices] for t in (self.packed, self.scales, self.biases))
        return torch_metal_ops.dequantize_affine(packed, scales.float(), biases.float(), self.group_size).to(dtype)

    def extra_repr(self) -> str:
        bits = 8 * self.packed.shape[2] // self.in_features
        return f"{self.in_features}, {self.out_features}, bits={bits}, group_size={self.group_size}"


class QuantizedEmbedding(nn.Module):
    """Looks up tokens in a quantised table and dequantises those rows only.

    Args:
        table: the quantised ``[tokens, features]``; a tied output layer is this same module.
        dtype: of the result.
    """

    def __init__(self, table: QuantizedLinear, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = table
        self.dtype = dtype

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.table.rows(input_ids, self.dtype)


def from_gguf(
    path: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> PreTrainedModel:
    """A causal language model from a GGUF file, its Q4_1 and Q8_0 matrices kept as they are.

    The model is transformers' own, built without memory for its weights; each linear layer and embedding whose matrix
    is affine in the file becomes a :class:`QuantizedLinear` or :class:`QuantizedEmbedding` with the file's integers,
    scales and minima. Other tensors (norms, other GGUF formats) are dequantised into ``dtype``. Attention is
    "metal_attention", which every model takes.

    Args:
        path: the .gguf file, of an architecture that transformers reads.
        dtype: of the activations and of what is not quantised: float32, float16 or bfloat16.
        device: where to put it all.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a GGUF file of a known architecture, or one that lacks weights of its model.
        NotImplementedError: a tensor whose place in the model is more than an order of rows (merged experts).
    """
    folder, file = os.path.split(os.path.abspath(path))
    if not os.path.isfile(path):
        raise FileNotFoundError(f"from_gguf: path must be a file, got {os.fspath(path)}. Check the name.")
    config = AutoConfig.from_pretrained(folder, gguf_file=file)
    with accelerate.init_empty_weights(include_buffers=False):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="metal_attention"
        )
    _fill(model, path, dtype)
    missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if missing:
        raise ValueError(
            f"from_gguf: the file must hold every weight, got none for {', '.join(missing)}. Check that it is complete."
        )
    model.eval().requires_grad_(False).to(device)
    return model


def _fill(model: PreTrainedModel, path: str | os.PathLike[str], dtype: torch.dtype) -> None:
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    make_processor: Any = gguf_support.TENSOR_PROCESSORS.get(architecture, gguf_support.TensorProcessor)
    processor = make_processor(model.config.to_dict())
    places = _places(model, architecture)
    for tensor in logging.tqdm(reader.tensors, desc="Loading GGUF tensors"):
        if tensor.name not in places:
            continue
        name_of_module, _, name = places[tensor.name].rpartition(".")
        module = model.get_submodule(name_of_module)
        if name == "weight" and is_affine(tensor.tensor_type.name) and type(module) in (nn.Linear, nn.Embedding):
            model.set_submodule(name_of_module, _quantised(module, tensor, processor, dtype))
        else:
            weights = _in_order(gguf.dequantize(tensor.data, tensor.tensor_type), tensor.name, processor)
            setattr(module, name, nn.Parameter(torch.from_numpy(weights).to(dtype), requires_grad=False))
    embedding = model.get_input_embeddings()
    if not model.config.tie_word_embeddings:
        return
    if isinstance(embedding, QuantizedEmbedding):
        model.set_output_embeddings(embedding.table)
    else:
        model.tie_weights()


def _places(model: PreTrainedModel, architecture: str) -> dict[str, str]:
    """The model's name for each tensor name that GGUF may use."""
    number = next((number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), None)
    if number is None:
        raise ValueError(f"from_gguf: the architecture must be one that gguf knows, got {architecture}. Update gguf.")
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    places = {}
    for parameter, _ in model.named_parameters():
        module, _, kind = parameter.rpartition(".")
        if (in_file := names.get_name(module)) is not None:
            places[f"{in_file}.{kind}"] = parameter
    return places


def _in_order(weights: np.ndarray, name: str, processor: gguf_support.TensorProcessor) -> np.ndarray:
    """GGUF's weights as the model has them; llama.cpp keeps the rows of q and k in another order, for its rope."""
    result = processor.process(weights=weights, name=name, tensor_key_mapping=None, parsed_parameters=None)
    if result.name is None:
        raise NotImplementedError(
            f"from_gguf: each tensor must be one parameter of the model, got {name}. "
            "Use a model without merged experts."
        )
    return np.array(result.weights)


def _quantised(
    module: nn.Module, tensor: gguf.ReaderTensor, processor: gguf_support.TensorProcessor, dtype: torch.dtype
) -> nn.Module:
    # The weights cannot go through the processor without being dequantised, but the numbers of their rows can: a
    # matrix that is quantised along its rows may have them in any order.
    count = len(tensor.data)
    rows = _in_order(np.arange(count)[:, None], tensor.name, processor)
    if rows.shape != (count, 1):
        raise NotImplementedError(
            f"from_gguf: a quantised matrix must keep its rows whole, got {tensor.name}, which is to be transposed. "
            "Use a file with this tensor in F16 or F32."
        )
    affine = affine_from_gguf(torch.from_numpy(tensor.data[rows[:, 0]]), tensor.tensor_type.name)
    linear = QuantizedLinear(*affine, GROUP_SIZE, bias=getattr(module, "bias", None))
    return QuantizedEmbedding(linear, dtype) if isinstance(module, nn.Embedding) else linear
