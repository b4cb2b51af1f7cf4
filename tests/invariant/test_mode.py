"""Invariant mode itself: what it routes, lets pass and refuses; nesting, threads, exceptions, compile, autocast."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from samebits.invariant import InvariantError, invariant_mode
from samebits.invariant.compound import WHOLE
from samebits.invariant.harmless import HARMLESS, HARMLESS_IF, HARMLESS_OFF_CPU
from samebits.invariant.refused import REASONS
from samebits.invariant.routed import RESUMED, ROUTED, ROUTED_ON_CPU
from samebits.numerics.bits import same_bits
from samebits.numerics.recipes import make
from samebits.ops.matmul import matmul

F = torch.nn.functional
torch.manual_seed(4)
X, W, B = torch.randn(33, 300), torch.randn(40, 300), torch.randn(40)
T = torch.randint(0, 300, (33,))


ROW_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(x, W),
    "linear with bias": lambda x: F.linear(x, W, B),
    "matmul": lambda x: x @ W.T,
    "addmm": lambda x: torch.addmm(B, x, W.T, beta=0.5, alpha=2.0),
    "bmm": lambda x: torch.bmm(x.reshape(-1, 3, 100), torch.ones(100, 7).expand(len(x), 100, 7)),
    "baddbmm": lambda x: torch.baddbmm(
        torch.ones(1, 3, 7), x.reshape(-1, 3, 100), W[:7, :100].T.expand(len(x), 100, 7)
    ),
    "mv": lambda x: torch.mv(x, W[0]),
    "einsum": lambda x: torch.einsum("mk,nk->mn", x, W),
    # The cheapest order of these products follows the number of rows.
    "multi_dot": lambda x: torch.linalg.multi_dot([x, W.T, W, W[:40].T]),
    "chain_matmul": lambda x: torch.chain_matmul(x, W.T, W, W[:40].T),
    "einsum by a path": lambda x: torch.ops.aten.einsum(
        "mk,nk,nl->ml", [x, W, W], path=[0, 1, 0, 1] if len(x) < 12 else [1, 2, 0, 1]
    ),
    "sum": lambda x: x.sum(-1),
    "sum of a middle axis": lambda x: x.reshape(-1, 30, 10).sum(1),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1, correction=0),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "softmax of another axis": lambda x: torch.softmax(x.reshape(-1, 30, 10), 1),
    "layer_norm": lambda x: F.layer_norm(x, (300,), W[1], W[2]),
    "rms_norm": lambda x: F.rms_norm(x, (300,), W[1]),
    "cross_entropy": lambda x: F.cross_entropy(x, x.argmin(-1), reduction="none"),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "erf": torch.erf,
    "rsqrt": lambda x: torch.rsqrt(x * x + 1),
    "power": lambda x: x.pow(3) + (x * x).pow(0.5),
    "sin and cos": lambda x: torch.sin(x) * torch.cos(x),
}


@pytest.mark.parametrize("name", ROW_FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_rows_keep_their_bits_and_values_are_right(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and input gradient, a row alone against the batch; and against float64 within a loose bound."""
    function, module = ROW_FUNCTIONS[name], globals()
    for each in ("W", "B"):
        monkeypatch.setitem(module, each, module[each].to(dtype))

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        y = function(x)
        cotangent = torch.cos(torch.arange(y[0].numel())).reshape(y[0].shape).to(y.dtype)
        (dx,) = torch.autograd.grad(y, x, cotangent.expand_as(y))
        return y.detach(), dx

    rows = X.to(dtype)
    with monkeypatch.context() as patched, torch.no_grad():
        ones = torch.ones
        patched.setattr(torch, "ones", lambda *shape, **options: ones(*shape, **{"dtype": dtype, **options}))
        with torch.enable_grad(), invariant_mode() as mode:
            whole = run(rows)
            for start, stop in ((0, 1), (32, 33), (5, 12)):
                part = run(rows[start:stop])
                assert all(same_bits(a, b[start:stop]) for a, b in zip(part, whole, strict=True))
        assert mode.routed and not mode.unverified
    if dtype == torch.float32:
        for each in ("W", "B"):
            monkeypatch.setitem(module, each, module[each].double())
        ones_double = torch.ones
        monkeypatch.setattr(
            torch, "ones", lambda *shape, **options: ones_double(*shape, **{"dtype": torch.float64, **options})
        )
        for found, exact in zip(whole, run(X.double()), strict=True):
            assert (found - exact).abs().max() <= 300 * 2**-23 * max(exact.abs().max().item(), 1.0)


def test_in_inference_mode_several_products_keep_their_bits_too() -> None:
    """There torch gives the mode the whole operation."""
    functions = [ROW_FUNCTIONS[name] for name in ("multi_dot", "chain_matmul", "einsum by a path")]
    with invariant_mode(), torch.inference_mode():
        for function in functions:
            assert same_bits(function(X)[5:12], function(X[5:12]))
        with pytest.raises(InvariantError, match="its form with out= is not offered"):
            torch.linalg.multi_dot([X, W.T, W], out=torch.empty(33, 300))


def test_products_are_those_of_the_component() -> None:
    with invariant_mode():
        routed = X @ W.T
    assert same_bits(routed, matmul(X, W.T))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_skip_ignored_rows(reduction: str) -> None:
    """Rows that are ignored, wherever they stand, change neither loss nor gradient."""
    target = T.clone()
    target[::3] = -100
    kept = target != -100

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        with invariant_mode():
            loss = F.cross_entropy(x, y, reduction=reduction)
            (dx,) = torch.autograd.grad(loss.sum(), x)
        return loss.detach(), dx

    (all_, dall), (some, dsome) = run(X, target), run(X[kept], target[kept])
    assert same_bits(all_[kept] if reduction == "none" else all_, some)
    assert same_bits(dall[kept], dsome) and not dall[~kept].any()
    exact = F.cross_entropy(X.double(), target, reduction=reduction)
    assert (all_ - exact).abs().max() <= 1e-5 * exact.abs().max()


def test_embedding_gradients_add_in_order() -> None:
    ids, weight = torch.arange(40) % 7, torch.randn(9, 33, requires_grad=True)
    cotangent = torch.randn(40, 33)
    with invariant_mode() as mode:
        (found,) = torch.autograd.grad(F.embedding(ids, weight, padding_idx=3), weight, cotangent)
    wanted = torch.zeros(9, 33)
    for place, each in enumerate(ids.tolist()):
        if each != 3:
            wanted[each] += cotangent[place]
    assert same_bits(found, wanted) and mode.routed["aten.embedding_dense_backward.default"] == 1


def _fused_step() -> Any:
    weight = nn.Parameter(W.clone())
    weight.grad = W.clone()
    torch.optim.AdamW([weight], fused=True).step()
    return weight


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "dropout in attention": (
        lambda: F.scaled_dot_product_attention(*[X.reshape(1, 3, 33, 100)] * 3, dropout_p=0.1),
        "use model.eval\\(\\) or dropout_p=0",
    ),
    "convolution": (lambda: F.conv1d(X[None], torch.ones(2, 33, 3)), "as a matrix product"),
    "cumprod": (lambda: X.cumprod(0), "a scan of floats"),
    "scatter_reduce": (
        lambda: torch.zeros(33, 9).scatter_reduce(1, T[:, None].expand(33, 4) % 9, X[:, :4], "sum"),
        "order of arrival",
    ),
    "two for one place": (
        lambda: torch.zeros(33, 9).scatter(1, T[:, None].expand(33, 4) % 9, X[:, :4]),
        "the winner is not fixed",
    ),
    "fused optimizer": (_fused_step, "fused=False"),
    "dropout": (lambda: F.dropout(X, 0.1), "use model.eval\\(\\) or p=0"),
    "rand": (lambda: torch.rand(3), "draw them before the block"),
    "multinomial": (lambda: torch.multinomial(X.abs(), 1), "samebits.ops.sample"),
    "mish": (lambda: F.mish(X), "the last elements of a tensor"),
    "pow": (lambda: X.abs().pow(1.7), "the power 1.7 is not offered"),
    "fft": (lambda: torch.fft.fft(X), "no order is known for it"),
    "a function of complex numbers": (lambda: torch.complex(X, X).exp(), "write it with real numbers"),
    "a quotient of complex numbers": (lambda: torch.complex(X, X) / torch.complex(X, X), "write it with real numbers"),
    "a factor of complex numbers": (lambda: torch.complex(X, X).add(torch.complex(X, X), alpha=0.3), "real numbers"),
    "a rounded quotient": (lambda: torch.div(X, 3.0, rounding_mode="floor"), "no order is known for it"),
    "powers of a negative number": (lambda: (-2.0) ** X, "allowed: of a positive number"),
    "float64": (lambda: X.double() @ W.double().T, "not float64; convert it"),
    "out forms of two": (
        lambda: torch.ops.aten.var_mean(X, [1], out0=torch.empty(0), out1=torch.empty(0)),
        "not offered",
    ),
    "median": (lambda: X.median(-1), "equal values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_vouches_for_is_refused_or_listed(name: str) -> None:
    function, words = REFUSED[name]
    with (
        invariant_mode(),
        pytest.raises(InvariantError, match=f"^invariant_mode: aten.* is refused: .*{words}") as raised,
    ):
        function()
    assert "\n" not in str(raised.value)
    with invariant_mode(strict=False) as mode:
        found = function()
    assert mode.unverified and found is not None


def test_the_error_names_operation_shapes_and_module() -> None:
    model = nn.Sequential(nn.Linear(300, 8), nn.Sequential(nn.Mish()))
    with (
        invariant_mode(),
        pytest.raises(InvariantError, match=r"aten\.mish\.default of float32\[33, 8\] in Sequential\.1\.0 "),
    ):
        model(X)


def test_gradients_are_named_too() -> None:
    x = X.clone().requires_grad_()
    with invariant_mode():
        y = x.take(T).sum()
        with pytest.raises(InvariantError, match="in the gradient TakeBackward0"):
            y.backward()


HARMLESS_CALLS: dict[str, Callable[[], Any]] = {
    "views": lambda: X.reshape(3, 11, 300).transpose(0, 1)[1:, None].expand(10, 2, 3, 300).contiguous(),
    "arithmetic": lambda: (X * 2 + X / 3 - 1).clamp(-1, 1).abs().reciprocal(),
    "integers": lambda: (T.sum(), T.cumsum(0), T @ T, T // 3, T.float()),
    "maxima": lambda: (X.max(-1), X.argmax(-1), X.aminmax(dim=0)),
    "copies": lambda: torch.cat([X, X.bfloat16().float()]).masked_fill(torch.cat([X, X]) > 0, 0.0),
    "one place each": lambda: torch.zeros(33, 300).scatter_add(1, T[:, None], X[:, :1]),
    "no dropout": lambda: (F.dropout(X, 0.0), F.dropout(X, 0.5, training=False)),
}


@pytest.mark.parametrize("name", HARMLESS_CALLS)
def test_what_cannot_change_an_order_passes(name: str) -> None:
    plain = HARMLESS_CALLS[name]()
    with invariant_mode() as mode:
        found = HARMLESS_CALLS[name]()
    assert not mode.routed and not mode.unverified
    for a, b in zip(torch.utils._pytree.tree_leaves(plain), torch.utils._pytree.tree_leaves(found), strict=True):
        assert torch.equal(a, b)


def test_weights_are_counted_on_the_cpu_alone() -> None:
    """There bincount adds them in order. A GPU does not; of a tensor that is elsewhere this can be said without one."""
    places, weights = T % 3, torch.randn(len(T))
    with invariant_mode():
        assert torch.equal(torch.bincount(places, weights), torch.zeros(3).index_add(0, places, weights))
        with pytest.raises(
            InvariantError, match=r"aten\.bincount\.default .* is refused: it adds in the order of arrival"
        ):
            torch.bincount(places.to("meta"), weights.to("meta"))


def test_the_tables_do_not_overlap() -> None:
    conditional = set(HARMLESS_IF)
    assert not HARMLESS & (set(ROUTED) | set(ROUTED_ON_CPU) | conditional | set(REASONS))
    assert not set(ROUTED) & (set(ROUTED_ON_CPU) | set(REASONS) | HARMLESS_OFF_CPU)
    assert set(RESUMED) <= set(ROUTED)


def test_every_name_in_the_tables_is_an_operation_of_torch() -> None:
    known = {
        name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")
    }
    misnamed = (
        (HARMLESS | set(HARMLESS_IF) | set(ROUTED) | set(ROUTED_ON_CPU) | set(REASONS) | HARMLESS_OFF_CPU | set(WHOLE))
        - known
        - {"_index_put_impl"}
    )  # the base of an in-place form that has no other
    assert not misnamed


def test_in_place_and_out_forms_are_routed() -> None:
    with invariant_mode() as mode:
        out = torch.empty(0)
        torch.mm(X, W.T, out=out)
        x = X.clone()
        x.sigmoid_()
        assert same_bits(out, X @ W.T) and same_bits(x, torch.sigmoid(X))
    assert {"aten.mm.out", "aten.sigmoid_.default"} <= set(mode.routed)


def test_modes_nest_and_the_stricter_wins() -> None:
    with invariant_mode() as outer:
        with invariant_mode(strict=False) as inner:
            _ = X @ W.T
            with pytest.raises(InvariantError):
                F.mish(X)
        assert inner.routed and not outer.routed  # the outer one saw samebits' own operation
        _ = X @ W.T
        assert outer.routed
    assert not _get_current_dispatch_mode_stack()


def test_an_exception_leaves_nothing_behind() -> None:
    before = F.linear(X[:5], W)
    with pytest.raises(KeyError), invariant_mode():
        raise KeyError
    assert not _get_current_dispatch_mode_stack()
    x = X[:5].clone().requires_grad_()
    F.linear(x, W).sum().backward()  # no hook on saved tensors is left either
    assert same_bits(F.linear(X[:5], W), before)


def test_other_threads_are_left_alone() -> None:
    """A thread without the mode sees none; two threads with modes of their own count for themselves."""
    inside, leave, found = threading.Event(), threading.Event(), {}

    def with_mode() -> None:
        with invariant_mode() as mode:
            _ = X @ W.T
            inside.set()
            leave.wait(20)
            _ = X @ W.T
        found["routed"] = mode.routed["aten.mm.default"]

    thread = threading.Thread(target=with_mode)
    thread.start()
    assert inside.wait(20)
    stack, plain = _get_current_dispatch_mode_stack(), F.mish(X)
    leave.set()
    thread.join()
    assert stack == [] and plain is not None and found == {"routed": 2}


def test_backward_outside_the_block_is_refused() -> None:
    x = X.clone().requires_grad_()
    with invariant_mode():
        loss = torch.tanh(x @ W.T).sum()
    with pytest.raises(InvariantError, match="backward of a forward under invariant_mode was called outside of it"):
        loss.backward()
    with invariant_mode(strict=False) as mode:
        loss = torch.tanh(x @ W.T).sum()
    loss.backward()
    assert mode.unverified["backward outside the block"] > 0
    with invariant_mode():
        loss = torch.tanh(x @ W.T).sum()
    with invariant_mode():  # another block is as good
        loss.backward()


def test_a_saved_tensor_that_was_overwritten_is_noticed() -> None:
    """The hooks that guard backward must not lose torch's own check."""
    x = X.clone().requires_grad_()
    with invariant_mode():
        y = x * 1
        z = (y * y).sum()
        with torch.no_grad():
            y.add_(1)
        with pytest.raises(RuntimeError, match="modified in place"):
            z.backward()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_is_refused(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.tanh(x @ W.T), backend=backend)
    compiled(X)
    with invariant_mode(), pytest.raises(InvariantError, match=r"a function of torch\.compile would run past"):
        compiled(X)
    compiled(X)


def test_the_gradient_of_a_compiled_function_is_refused() -> None:
    torch._dynamo.reset()
    x = X.clone().requires_grad_()
    y = torch.compile(lambda x: torch.tanh(x @ W.T).sum(), backend="aot_eager")(x)
    with invariant_mode(), pytest.raises(InvariantError, match=r"a function of torch\.compile would run past"):
        y.backward()


@pytest.mark.parametrize("fullgraph", [False, True])
def test_the_mode_cannot_be_entered_while_compiling(fullgraph: bool) -> None:
    torch._dynamo.reset()

    def inside(x: Tensor) -> Tensor:
        with invariant_mode():
            return x @ W.T

    refused = (InvariantError, torch._dynamo.exc.TorchDynamoException)
    with pytest.raises(refused):
        torch.compile(inside, backend="eager", fullgraph=fullgraph)(X)
    assert not _get_current_dispatch_mode_stack()


def test_autocast_is_seen_through() -> None:
    """Autocast converts above the mode; the products arrive in bfloat16 and are routed."""
    with invariant_mode() as mode, torch.autocast("cpu", dtype=torch.bfloat16):
        whole, part = F.linear(X, W, B), F.linear(X[7:8], W, B)
    assert whole.dtype == torch.bfloat16 and same_bits(whole[7:8], part) and mode.routed["aten.addmm.default"] == 2


def test_inference_mode_is_seen_through() -> None:
    """There torch does not take matmul apart; the mode does."""
    with torch.inference_mode(), invariant_mode() as mode:
        whole, part = (X.reshape(3, 11, 300) @ W.T).reshape(33, 40), X[7:8] @ W.T
        assert same_bits(X.var(-1)[7:8], X[7:8].var(-1)) and same_bits(X.softmax(0), torch.softmax(X, 0))
    assert same_bits(whole[7:8], part) and mode.routed["aten.mm.default"] == 2


def test_other_libraries_operations_are_refused() -> None:
    library = torch.library.Library("strangers", "DEF")
    library.define("total(Tensor x) -> Tensor")
    library.impl("total", lambda x: x.sum(), "CPU")
    with invariant_mode(), pytest.raises(InvariantError, match=r"strangers\.total\.default"):
        torch.ops.strangers.total(X)


def test_transformers_is_not_loaded_for_those_who_do_not_use_it() -> None:
    code = (
        "import sys, torch, samebits.invariant\n"
        "with samebits.invariant.invariant_mode(): torch.ones(3, 4) @ torch.ones(4, 5)\n"
        "assert 'transformers' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_strict_must_be_a_truth() -> None:
    with pytest.raises(ValueError, match="strict is 'yes'; allowed: True, False"):
        invariant_mode(strict="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("inference", [False, True], ids=["grad", "inference"])
def test_a_layers_bits_do_not_depend_on_the_strides_of_its_input(dtype: torch.dtype, inference: bool) -> None:
    """Of a strided batch torch adds the bias after the rounding; a batch of one is contiguous however it is turned."""
    x, layer = torch.from_numpy(make("normal", (6, 33, 40), 5)).to(dtype), nn.Linear(40, 30).to(dtype)
    with torch.inference_mode(inference), invariant_mode():
        whole = layer(x.transpose(0, 1))
        for row in (0, 7, 32):
            assert same_bits(layer(x[:, row : row + 1].transpose(0, 1).contiguous()), whole[row : row + 1])
            assert same_bits(layer(x[2, row]), whole[row, 2])
        assert layer(x[:0]).shape == (0, 33, 30)
    stock = layer(x.transpose(0, 1))[7], layer(x[:, 7])
    assert dtype == torch.float32 or not same_bits(*stock), "torch has become what it is taken for"


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN], ids=["GRU", "RNN"])
def test_a_recurrent_layer_keeps_its_bits(kind: type[nn.Module]) -> None:
    layer = kind(40, 32, batch_first=True).to(torch.bfloat16)
    x = torch.from_numpy(make("normal", (33, 6, 40), 5)).to(torch.bfloat16)
    with invariant_mode():
        whole = layer(x)[0].detach()
        assert all(same_bits(layer(x[row : row + 1])[0].detach(), whole[row : row + 1]) for row in (0, 7, 32))
