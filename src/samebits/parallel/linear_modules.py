"""Linear layers over ranks as modules with Megatron's signatures: `ColumnParallelLinear`, `RowParallelLinear`.

Pieces may be of any size, none included. What Megatron offers and these do not keep is refused, not ignored; new are
`group`, `cuts`, `dtype` and `device`. Initial weights are drawn whole, by the first rank, so that neither the number of
ranks nor their random states decide them. Knows no model; the sums are `linear`'s."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from samebits.parallel.collectives import broadcast, even_cuts
from samebits.parallel.linear import check_cuts, column_parallel, gathered, row_parallel, scattered
from samebits.parallel.world import Group

Drawing = Callable[[Tensor], Any]
"""Fills a tensor in place, as torch.nn.init's functions do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What a module takes from Megatron's ModelParallelConfig; None in its place means these."""

    dtype: torch.dtype = torch.float32
    initialize: bool = True
    fused: bool = False
    """Whether a weight's gradient is added to weight.main_grad (float32), over micro-batches."""


def settings_of(module: str, config: Any, dtype: torch.dtype | None, initialize: bool) -> Settings:
    """The settings that decide something here; those that would ask for more are refused."""
    if config is None:
        return Settings(dtype=dtype or torch.float32, initialize=initialize)
    kept = {
        "sequence_parallel": False,
        "defer_embedding_wgrad_compute": False,
        "cpu_offloading": False,
        "expert_model_parallel_size": 1,
    }
    refuse(module, {f"config.{name}": (getattr(config, name, only), only) for name, only in kept.items()})
    return Settings(
        dtype=dtype or config.params_dtype,
        fused=getattr(config, "gradient_accumulation_fusion", False),
        initialize=initialize and getattr(config, "perform_initialization", True),
    )


def refuse(module: str, options: Mapping[str, tuple[Any, Any]]) -> None:
    """Each option's value must be the only one that is kept."""
    for name, (value, only) in options.items():
        if value is not only and value != only:
            raise ValueError(f"{module}: {name} is {value!r}; allowed: {only!r}")


def checked_cuts(module: str, length: int, cuts: Sequence[int] | None, group: Group) -> list[int]:
    """The cuts given, or even ones."""
    if cuts is None:
        return even_cuts(length, group.size)
    if len(cuts) != group.size + 1 or list(cuts) != sorted(cuts) or (cuts[0], cuts[-1]) != (0, length):
        raise ValueError(
            f"{module}: the cuts are {list(cuts)}; allowed: {group.size + 1} ascending places from 0 to {length}"
        )
    return list(cuts)


def drawn(shape: tuple[int, int], init_method: Drawing, group: Group, device: torch.device | str | None) -> Tensor:
    """A whole weight in float32 as the first rank draws it, on every rank."""
    whole = torch.empty(shape, dtype=torch.float32, device=device)
    if group.place == 0:
        with torch.no_grad():
            init_method(whole)
    return broadcast(group, whole, 0, "initial weight")


def as_torch_draws(weight: Tensor) -> None:
    """nn.Linear's initial weight."""
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))


class _Linear(nn.Module):
    """What both have: a piece of a weight (outputs, inputs), cut on one axis, and perhaps a bias."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        axis: int,
        bias: bool,
        init_method: Drawing | None,
        skip_bias_add: bool,
        group: Group,
        cuts: Sequence[int] | None,
        settings: Settings,
        device: torch.device | str | None,
    ) -> None:
        super().__init__()
        self.input_size, self.output_size, self.skip_bias_add, self.group = (
            input_size,
            output_size,
            skip_bias_add,
            group,
        )
        self.axis, self.fused = axis, settings.fused
        whole = (output_size, input_size)
        self.cuts = checked_cuts(type(self).__name__, whole[axis], cuts, group)
        own = slice(self.cuts[group.place], self.cuts[group.place + 1])
        sizes = [own.stop - own.start if i == axis else length for i, length in enumerate(whole)]
        fresh: dict[str, Any] = {"dtype": settings.dtype, "device": device}
        self.weight = nn.Parameter(torch.empty(*sizes, **fresh))
        # A row-parallel bias is whole on every rank; a column-parallel one is cut like the outputs.
        self.register_parameter("bias", nn.Parameter(torch.zeros(sizes[0], **fresh)) if bias else None)
        if settings.initialize:
            values = drawn(whole, init_method or as_torch_draws, group, device)
            self._fill(values, None)

    def _fill(self, weight: Tensor, bias: Tensor | None) -> None:
        """This rank's pieces of a whole weight and bias."""
        start, end = self.cuts[self.group.place], self.cuts[self.group.place + 1]
        with torch.no_grad():
            self.weight.copy_(weight.narrow(self.axis, start, end - start))
            if bias is not None and self.bias is not None:
                self.bias.copy_(bias[start:end] if self.axis == 0 else bias)

    @classmethod
    def from_whole(cls, weight: Tensor, bias: Tensor | None, group: Group, **options: Any) -> Self:
        """This rank's piece of a layer of one device: weight (outputs, inputs), bias (outputs) or None."""
        outputs, inputs = weight.shape
        options |= {"bias": bias is not None, "dtype": weight.dtype, "device": weight.device, "initialize": False}
        layer = cls(inputs, outputs, group=group, **options)
        layer._fill(weight, bias)
        return layer

    def _sums(self, weight: Tensor) -> Tensor | None:
        if not self.fused:
            return None
        sums = getattr(weight, "main_grad", None)
        if sums is None:
            raise ValueError(
                f"{type(self).__name__}: gradient_accumulation_fusion is True, weight.main_grad is None;"
                f" allowed: a float32 tensor like the weight"
            )
        return sums  # type: ignore[no-any-return]

    @property
    def _added_bias(self) -> Tensor | None:
        return None if self.skip_bias_add else self.bias

    @property
    def _returned_bias(self) -> Tensor | None:
        return self.bias if self.skip_bias_add else None

    def extra_repr(self) -> str:
        place = self.group.place
        return (
            f"in_features={self.input_size}, out_features={self.output_size}, bias={self.bias is not None},"
            f" {('outputs', 'inputs')[self.axis]} {self.cuts[place]} to {self.cuts[place + 1]},"
            f" rank {place} of {self.group.size}"
        )


class ColumnParallelLinear(_Linear):
    """y = x weight^T + bias with the outputs cut over ranks; x is the same on every rank."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: Any = None,
        init_method: Drawing | None = None,
        bias: bool = True,
        gather_output: bool = False,
        stride: int = 1,
        keep_master_weight_for_test: bool = False,
        skip_bias_add: bool = False,
        skip_weight_param_allocation: bool = False,
        embedding_activation_buffer: list[Tensor] | None = None,
        grad_output_buffer: list[Tensor] | None = None,
        is_expert: bool = False,
        tp_comm_buffer_name: str | None = None,
        disable_grad_reduce: bool = False,
        group: Group,
        cuts: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        initialize: bool = True,
    ) -> None:
        """`tp_comm_buffer_name` is a name that Megatron's own layer does not use either."""
        refuse(
            "ColumnParallelLinear",
            {
                "stride": (stride, 1),
                "keep_master_weight_for_test": (keep_master_weight_for_test, False),
                "skip_weight_param_allocation": (skip_weight_param_allocation, False),
                "embedding_activation_buffer": (embedding_activation_buffer, None),
                "grad_output_buffer": (grad_output_buffer, None),
                "is_expert": (is_expert, False),
                "disable_grad_reduce": (disable_grad_reduce, False),
            },
        )
        settings = settings_of("ColumnParallelLinear", config, dtype, initialize)
        super().__init__(
            input_size,
            output_size,
            axis=0,
            bias=bias,
            init_method=init_method,
            skip_bias_add=skip_bias_add,
            group=group,
            cuts=cuts,
            settings=settings,
            device=device,
        )
        self.gather_output, self.output_size_per_partition = gather_output, self.weight.shape[0]

    def forward(
        self, input_: Tensor, weight: Tensor | None = None, runtime_gather_output: bool | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(outputs of this rank, or all of them where gathered; the bias if it was not added)."""
        weight = self.weight if weight is None else weight
        if weight.shape != self.weight.shape:
            raise ValueError(
                f"ColumnParallelLinear: weight has shape {tuple(weight.shape)}; allowed: {tuple(self.weight.shape)}"
            )
        check_cuts("ColumnParallelLinear", self.cuts, input_)
        sums = self._sums(weight)
        (output,) = column_parallel(
            input_, [weight], self.group, sums=None if sums is None else [sums], biases=[self._added_bias]
        )
        if self.gather_output if runtime_gather_output is None else runtime_gather_output:
            output = gathered(output, self.cuts, self.group)
        return output, self._returned_bias


class RowParallelLinear(_Linear):
    """y = x weight^T + bias with the inputs cut over ranks; y is the same on every rank, the bias is added once."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: Any = None,
        init_method: Drawing | None = None,
        bias: bool = True,
        input_is_parallel: bool = True,
        skip_bias_add: bool = False,
        stride: int = 1,
        keep_master_weight_for_test: bool = False,
        is_expert: bool = False,
        tp_comm_buffer_name: str | None = None,
        group: Group,
        cuts: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        initialize: bool = True,
    ) -> None:
        """`tp_comm_buffer_name` is a name that Megatron's own layer does not use either."""
        refuse(
            "RowParallelLinear",
            {
                "stride": (stride, 1),
                "keep_master_weight_for_test": (keep_master_weight_for_test, False),
                "is_expert": (is_expert, False),
            },
        )
        settings = settings_of("RowParallelLinear", config, dtype, initialize)
        super().__init__(
            input_size,
            output_size,
            axis=1,
            bias=bias,
            init_method=init_method,
            skip_bias_add=skip_bias_add,
            group=group,
            cuts=cuts,
            settings=settings,
            device=device,
        )
        self.input_is_parallel, self.input_size_per_partition = input_is_parallel, self.weight.shape[1]

    def forward(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        """(all outputs, the bias if it was not added)."""
        check_cuts("RowParallelLinear", self.cuts, input_)
        own = input_ if self.input_is_parallel else scattered(input_, self.cuts, self.group)
        sums = self._sums(self.weight)
        return row_parallel(own, self.weight, self.group, sums=sums, bias=self._added_bias), self._returned_bias
