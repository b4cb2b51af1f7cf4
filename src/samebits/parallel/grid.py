"""A world as a grid: ranks that share one copy of the weights side by side, copies one below the other.

Tensor-parallel ranks are neighbours (they talk most), so rank = copy * tensor + place. Knows no weight."""

from __future__ import annotations

from dataclasses import dataclass

from samebits.parallel.world import Group, World


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """`tensor` ranks hold a copy of the weights between them; `data` copies go through different lanes."""

    world: World
    tensor: int = 1

    def __post_init__(self) -> None:
        if self.tensor < 1 or self.world.size % self.tensor:
            raise ValueError(
                f"ranks: tensor is {self.tensor} for {self.world.size} ranks; allowed: a divisor of the number of ranks"
            )

    @property
    def data(self) -> int:
        return self.world.size // self.tensor

    @property
    def copy(self) -> int:
        """Which copy of the weights this rank is part of."""
        return self.world.rank // self.tensor

    @property
    def place(self) -> int:
        """Which part of the copy it holds."""
        return self.place_of(self.world.rank)

    def place_of(self, rank: int) -> int:
        return rank % self.tensor

    @property
    def tensor_group(self) -> Group:
        """The ranks of this copy."""
        first = self.copy * self.tensor
        return Group(world=self.world, members=tuple(range(first, first + self.tensor)))

    @property
    def data_group(self) -> Group:
        """The ranks that hold the same part of every copy."""
        return Group(world=self.world, members=tuple(range(self.place, self.world.size, self.tensor)))
