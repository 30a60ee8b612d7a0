from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Error", "Generator", "Model", "Plan", "TensorSpec", "__version__", "command", "load"]
__version__: str

class _Dlpack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

_Input: TypeAlias = ArrayLike | _Dlpack
_Array: TypeAlias = NDArray[Any]
_Path: TypeAlias = str | PathLike[str]
_Shapes: TypeAlias = Mapping[str, Sequence[int]]
_Loss: TypeAlias = Literal[
    "cross_entropy", "next_token", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss"
]

class Error(ValueError): ...

@final
class TensorSpec:
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int | str | None, ...]: ...

@final
class Plan:
    @property
    def memory(self) -> dict[str, int]: ...
    @property
    def total_bytes(self) -> int: ...
    def to_svg(self) -> str: ...

@final
class Model:
    @property
    def inputs(self) -> dict[str, TensorSpec]: ...
    @property
    def outputs(self) -> dict[str, TensorSpec]: ...
    @property
    def parameters(self) -> dict[str, TensorSpec]: ...
    def state_dict(self) -> dict[str, _Array]: ...
    def load_state_dict(self, values: dict[str, _Input]) -> None: ...
    def run(self, inputs: dict[str, _Input], outputs: Sequence[str] | None = None) -> dict[str, _Array]: ...
    def __call__(self, *inputs: _Input, **named: _Input) -> Any: ...
    def loss(self, kind: _Loss, *, output: str | None = None, target: str = "target") -> Model: ...
    def grad(self, loss: str | None = None, *, wrt: Sequence[str] | None = None) -> Model: ...
    def train_step(
        self,
        optimizer: str,
        loss: str | None = None,
        *,
        freeze: Sequence[str] | None = None,
        budget: int | str | None = None,
        shapes: _Shapes | None = None,
    ) -> Model: ...
    def freeze(self) -> Model: ...
    def explain(self, variable: str) -> str: ...
    def plan(
        self,
        *,
        shapes: _Shapes | None = None,
        outputs: Sequence[str] | None = None,
        budget: int | str | None = None,
    ) -> Plan: ...
    def save(self, path: _Path) -> None: ...
    def summary(self) -> str: ...
    def _repr_html_(self) -> str: ...

@final
class Generator:
    def __new__(
        cls,
        path: _Path,
        *,
        max_length: int = 2048,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        quantize: str | None = None,
        threads: int | None = None,
    ) -> Generator: ...
    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = 256,
        chat: bool = False,
        system: str | None = None,
        greedy: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] | None = None,
        on_text: Callable[[str], bool | None] | None = None,
    ) -> str: ...

def load(
    path: _Path,
    *,
    weights: _Path | None = None,
    shapes: _Shapes | None = None,
    dims: Mapping[str, int] | None = None,
    constants: dict[str, _Input] | None = None,
    threads: int | None = None,
) -> Model: ...
def command(arguments: Sequence[str]) -> int: ...
