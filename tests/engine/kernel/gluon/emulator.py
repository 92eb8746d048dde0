"""The Gluon kernel run on a CPU: its own Python source, with tensors that are numpy arrays and CTAs that take turns.

Every function of the kernel's modules is called as plain Python; what it names of Gluon, and the functions that hold PTX, are replaced
by what they mean. Global memory is one array of bytes in which pointers are offsets, so ranks reach each other's buffers like everything
else. Each CTA is two greenlets, consumer and producer. They run until they wait for something that is not there, then another one is
taken at random; when none can go on, ``Stuck`` is raised.

What it does not show: races between the threads of a CTA, layouts, timing, stores that others see late or in another order.
"""

import random
import types
from dataclasses import dataclass

import numpy as np
import torch
from greenlet import greenlet

from engine.kernel.gluon import (
    attention,
    chain_layer,
    common_layer,
    exchange,
    flags,
    gemv,
    half_layer,
    kernel,
    phases,
    producer,
    sample,
    state,
    steps,
    sums,
)
from engine.kernel.gluon.path import GluonPath
from engine.weights import Shard

# each after those that it imports
MODULES = (flags, exchange, gemv, attention, sample, steps, state, producer, sums, phases, common_layer, half_layer, chain_layer, kernel)


class Stuck(Exception):
    """Every CTA waits."""


# --- values -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Type:
    numpy: type

    @property
    def primitive_bitwidth(self) -> int:
        return np.dtype(self.numpy).itemsize * 8


@dataclass(frozen=True)
class PointerType:
    element_ty: Type


FLOAT16, FLOAT32, INT16, INT32, INT64 = (Type(kind) for kind in (np.float16, np.float32, np.int16, np.int32, np.int64))
TYPES = {np.dtype(kind.numpy): kind for kind in (FLOAT16, FLOAT32, INT16, INT32, INT64)}


class Value:
    """A tensor or scalar of the kernel; with ``element`` pointers (int64 byte offsets) to values of that type."""

    __array_ufunc__ = None  # numpy leaves operators to this class

    def __init__(self, data, element: Type | None = None):
        self.data, self.element = np.asarray(data), element

    @property
    def dtype(self):
        if self.element:
            return PointerType(self.element)
        return TYPES.get(self.data.dtype, self.data.dtype)

    @property
    def shape(self) -> tuple:
        return self.data.shape

    @property
    def type(self):
        return types.SimpleNamespace(layout=None)

    def to(self, kind: Type, bitcast: bool = False) -> "Value":
        if self.element:
            return Value(self.data)
        return Value(self.data.view(kind.numpy) if bitcast else self.data.astype(kind.numpy))

    def __getitem__(self, index):
        return Value(self.data[index], self.element)

    def __bool__(self):
        assert self.data.size == 1
        return bool(self.data)

    def __index__(self):
        return int(self.data)

    def __hash__(self):
        return id(self)


def raw(x):
    return x.data if isinstance(x, Value) else x


def _operator(name: str, reverse: bool = False):
    method = getattr(np.ndarray, f"__{name}__")

    def apply(self: Value, other) -> Value:
        if isinstance(other, Value) and other.element and not self.element:
            return other + self
        a, b = np.asarray(self.data), raw(other)
        if isinstance(b, float) and a.dtype.kind != "f":
            a = a.astype(np.float32)
        if type(b) in (int, float):
            b = np.asarray(b, np.int32 if a.dtype == bool else a.dtype)
        if self.element and name in ("add", "sub"):
            return Value(method(a, np.asarray(b, np.int64) * (self.element.primitive_bitwidth // 8)), self.element)
        if reverse:
            a, b = np.asarray(b), a
        if name in ("floordiv", "mod"):  # towards zero, as on the GPU
            quotient = (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(np.result_type(a, b))
            return Value(quotient if name == "floordiv" else a - quotient * b)
        return Value(method(a, b))

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(Value, f"__{_name}__", _operator(_name))
    setattr(Value, f"__r{_name}__", _operator(_name, reverse=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Value, f"__{_name}__", _operator(_name))
Value.__neg__ = lambda self: Value(-self.data)
Value.__invert__ = lambda self: Value(~self.data)


# --- memory -------------------------------------------------------------------------------------------------------------------


class Memory:
    """Global memory: pointers are offsets into ``bytes``."""

    def __init__(self, size: int = 1 << 26):
        self.bytes, self.end = np.zeros(size, np.uint8), 256

    def put(self, array: np.ndarray) -> Value:
        """A pointer to a copy of ``array``."""
        array = np.ascontiguousarray(array)
        start, self.end = self.end, self.end + -(-array.nbytes // 256) * 256
        assert self.end <= len(self.bytes), "no memory left"
        self.bytes[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        return Value(np.int64(start), TYPES[array.dtype])

    def array(self, pointer: Value, shape) -> np.ndarray:
        """What lies at a pointer, as a view."""
        kind, start = pointer.element.numpy, int(pointer.data)
        return self.bytes[start : start + int(np.prod(shape)) * np.dtype(kind).itemsize].view(kind).reshape(shape)

    def load(self, pointers: Value, shift=0) -> np.ndarray:
        size = pointers.element.primitive_bitwidth // 8
        return self.bytes.view(f"i{size}")[(pointers.data + shift) // size].view(pointers.element.numpy)

    def store(self, pointers: Value, value, mask=None) -> None:
        kind = pointers.element.numpy
        at, value, mask = np.broadcast_arrays(pointers.data, np.asarray(raw(value)), np.asarray(True if mask is None else raw(mask)))
        assert value.dtype == kind or value.dtype.kind in "iu", (value.dtype, kind)
        self.bytes.view(kind)[at[mask] // np.dtype(kind).itemsize] = value[mask].astype(kind)


class Shared:
    """A buffer in shared memory; its shapes are row-major."""

    layout = None

    def __init__(self, data: np.ndarray):
        self.data = data

    @property
    def dtype(self) -> Type:
        return TYPES[self.data.dtype]

    def _reinterpret(self, kind, shape, layout):
        tile, values = int(np.prod(shape[1:])), self.data.reshape(-1).view(kind.numpy)
        count = min(shape[0], values.size // tile)  # a shape may name more tiles than there are, of which only the first are used
        return Shared(values[: count * tile].reshape(count, *shape[1:]))

    def index(self, i):
        i = int(i)
        assert 0 <= i < len(self.data), f"{i} of {self.data.shape}"
        return Shared(self.data[i])

    def slice(self, first, count):
        return Shared(self.data[first : first + count])

    def permute(self, order):
        return Shared(self.data.transpose(order))

    def load(self, layout):
        return Value(self.data.copy())

    def store(self, value: Value):
        assert self.data.shape == value.shape and self.data.dtype == value.data.dtype, (self.data.shape, value.shape)
        self.data[...] = value.data


class Barrier:
    """An mbarrier of one arrival."""

    def __init__(self):
        self.done = self.bytes = 0
        self.arrived = False

    def arrive(self, size=0):
        assert not self.arrived
        self.arrived, self.bytes = True, self.bytes + size
        self.complete(0)

    def complete(self, size):
        self.bytes -= size
        if self.arrived and not self.bytes:
            self.done, self.arrived = self.done + 1, False


class Barriers:
    def __init__(self, count: int):
        self.all = [Barrier() for _ in range(count)]

    def index(self, i):
        return self.all[int(i)]


@dataclass
class Descriptor:
    """A matrix [rows, columns] of which boxes are copied."""

    rows: np.ndarray
    box: tuple[int, int]
    layout = None


# --- the machine ----------------------------------------------------------------------------------------------------------------


class Machine:
    """Launches of several ranks that run at once. ``seed`` decides whose turn it is; CTAs of rank ``late`` run when no others can."""

    def __init__(self, memory: Memory, seed: int = 0, late: int | None = None):
        self.memory, self.random, self.late = memory, random.Random(seed), late
        self.names = {}
        for module in MODULES:
            self._translate(module)

    def run(self, launches: list[tuple], function=None) -> None:
        """``launches``: (number of CTAs, arguments of ``function``, by default ``kernel.decode``) of every rank. Raises Stuck."""
        self.greenlets = []
        for rank, (ctas, arguments) in enumerate(launches):
            for pid in range(ctas):
                self._spawn(rank, pid, function or self.decode, arguments)
        idle = 0
        while self.greenlets:
            others_wait = idle > 3 * len(self.greenlets)
            one = self.random.choice([g for g in self.greenlets if (g.rank == self.late) == others_wait] or self.greenlets)
            self.progress = False
            one.switch()
            if one.dead:
                self.greenlets.remove(one)
            idle = 0 if self.progress or one.dead else idle + 1
            if idle > 40 * len(self.greenlets):
                raise Stuck(f"{len(self.greenlets)} consumers and producers wait.")

    def _spawn(self, rank: int, pid: int, function, arguments: tuple) -> None:
        def start():
            np.seterr(all="ignore")  # of this greenlet
            self.progress = True
            function(*arguments)

        one = greenlet(start, parent=self._main())
        one.rank, one.pid = rank, pid
        self.greenlets.append(one)

    def _main(self) -> greenlet:
        """The greenlet that hands out turns."""
        current = greenlet.getcurrent()
        return current.parent if hasattr(current, "pid") else current

    def wait(self, ready, guard=None) -> None:
        """Let others run until ``ready()`` is true, or until the guard's abort word is written."""
        while not ready() and not (guard and self.memory.load(Value(raw(guard[0]), INT32))):
            self._main().switch()
        self.progress = True

    # --- translation

    def _translate(self, module) -> None:
        from triton.experimental.gluon import language as gl

        space = {"__builtins__": __builtins__, "__name__": module.__name__}
        for name, value in vars(module).items():
            if isinstance(value, gl.constexpr):
                space[name] = value.value
            elif hasattr(value, "fn") and hasattr(value.fn, "__code__") and type(value).__name__.endswith("JITFunction"):
                space[name] = self._function(value.fn, space) if value.fn.__module__ == module.__name__ else self.names[value.fn.__name__]
                self.names.setdefault(name, space[name])
            elif not name.startswith("__"):
                space[name] = value
        meanings = {name: getattr(self, name) for name in dir(type(self)) if not name.startswith("_") and name in space}
        space.update(meanings)
        self.names.update(meanings)
        space.update(gl=self._gluon(), mbarrier=self._mbarrier(), tma=types.SimpleNamespace(async_copy_global_to_shared=self._copy))
        space["range"] = lambda *limits: (Value(np.int32(i)) for i in range(*(int(limit) for limit in limits)))
        if module is kernel:
            self.decode = space["decode"]

    @staticmethod
    def _function(fn, space: dict):
        defaults = tuple(getattr(value, "value", value) for value in fn.__defaults__ or ()) or None
        return types.FunctionType(fn.__code__, space, fn.__name__, defaults)

    # --- functions of the kernel that hold PTX, by their names

    def cta_barrier(self):
        pass

    fence = fence_copy_engine = fence_async_shared = barriers_off = barriers_on = cta_barrier

    def clock(self):
        return Value(np.int64(0))

    def add_waited(self, counters, kind, began):
        pass

    def peek(self, p, use, N, STRIDE, PACK, ALWAYS=False):
        return ()

    def settle(self, v, p, use, guard, T, N, STRIDE, PACK, ALWAYS=False):
        return self._await(p, use, N, STRIDE, ALWAYS, guard)

    def peek_tiles(self, p, use, N, PACK, ALWAYS=False):
        return ()

    def settle_tiles(self, v, p, use, guard, T, N, PACK, ALWAYS=False):
        return self._await(p, use * N, N, 128, ALWAYS, guard)

    def peek32(self, p, use, N, STRIDE, PACK):
        return ()

    def settle32(self, v, p, use, guard, N, STRIDE, PACK):
        return self._await(p, use, N, STRIDE, True, guard)

    def peek_some(self, p, left, PACK):
        return ()

    def settle_some(self, v, p, left, guard, PACK):
        return self._await(p, left, 1, 0, False, guard)[0]

    def read_words(self, p, use, guard, N, STRIDE):
        return self._await(p, use, N, STRIDE, False, guard)

    def read_total(self, p, arrivals, use, guard):
        used = np.broadcast_to(raw(use) != 0, p.shape)
        self.wait(lambda: (self.memory.load(p)[used] + 1 >> 32 >= raw(arrivals)).all(), guard)
        return Value(np.where(used, self.memory.load(p) + 1, 0).astype(np.int32))

    def _await(self, p: Value, use, tiles: int, stride: int, always: bool, guard) -> tuple:
        """Values at p, p + stride bytes, ...: of the first ``use`` tiles, 0 elsewhere, once none is unwritten or the wait was given up."""
        used = [np.broadcast_to(np.asarray(raw(use)) > t, p.shape) | always for t in range(tiles)]
        bits = f"i{p.element.primitive_bitwidth // 8}"
        found, complete = [None] * tiles, [False] * tiles

        def ready() -> bool:
            for t in range(tiles):
                if not complete[t]:
                    value = self.memory.load(p, t * stride)
                    complete[t] = not (used[t] & (np.asarray(value).view(bits) == -1)).any()
                    found[t] = np.where(used[t], value, 0).astype(p.element.numpy)
            return all(complete)

        self.wait(ready, guard)
        return tuple(Value(value) for value in found)

    def arrive(self, counter):
        self.memory.store(counter, self.memory.load(counter) + np.int32(1))

    arrive_there = arrive

    def wait_count(self, counter, target, guard):
        self.wait(lambda: self.memory.load(counter) >= raw(target), guard)

    def wait_counts(self, counter, target, other, least, guard):
        self.wait_count(counter, target, guard)
        self.wait_count(other, least, guard)

    def load_relaxed(self, p):
        return Value(self.memory.load(p))

    def exp2(self, x):
        return Value(np.exp2(x.data))

    def reciprocal(self, x):
        return Value(1 / x.data)

    def widen(self, v):
        return v.to(FLOAT32)

    def read_stop(self, host, pid):
        return Value(self.memory.load(host[2])) if int(pid) == 0 else Value(np.int32(0))

    def write_host(self, p, value, q, count, on):
        if int(on):
            self.memory.store(p, value)
            self.memory.store(q, count)

    def warpgroup_mma(self, a, b, acc, use_acc=True, is_async=False):
        product = a.data.astype(np.float32) @ b.data.astype(np.float32)
        return Value(acc.data + product if use_acc else product)

    def warpgroup_mma_wait(self, pending, deps):
        return deps[0] if len(deps) == 1 else tuple(deps)

    # --- Gluon

    def _copy(self, descriptor: Descriptor, coordinates, barrier: Barrier, to: Shared, pred=True):
        if bool(pred):
            row, column = (int(c) for c in coordinates)
            rows, columns = descriptor.box
            found = descriptor.rows[row : row + rows, column : column + columns]
            to.data[...] = 0
            to.data[: len(found)] = found
            barrier.complete(to.data.nbytes)

    def _mbarrier(self):
        def wait(barrier, phase, pred=True):
            if bool(pred):
                self.wait(lambda: barrier.done & 1 != int(phase))

        def expect(barrier, size, pred=True):
            if bool(pred):
                barrier.arrive(int(size))

        return types.SimpleNamespace(
            wait=wait,
            expect=expect,
            arrive=lambda barrier, count: barrier.arrive(),
            init=lambda barrier, count: None,
            MBarrierLayout=lambda: "barriers",
        )

    def _gluon(self):
        memory = self.memory

        def value(function):
            def apply(*inputs, **options):
                return Value(function(*(raw(x) for x in inputs), **options))

            return apply

        def where(condition, a, b):
            element = next((x.element for x in (a, b) if isinstance(x, Value)), None)
            a, b = raw(a), raw(b)
            kinds = [x.dtype for x in (a, b) if isinstance(x, np.ndarray)]
            if not kinds:
                kinds = [np.float32 if isinstance(a, float) else np.int32 if max(abs(a), abs(b)) < 1 << 31 else np.int64]
            return Value(np.where(raw(condition), np.asarray(a, np.result_type(*kinds)), np.asarray(b, np.result_type(*kinds))), element)

        def reduce(function):
            def apply(x, axis):
                return Value(function(x.data, axis=axis).astype(x.data.dtype if x.data.dtype != bool else np.int32))

            return apply

        def load(p, mask=None, other=0, cache_modifier=""):
            inside = np.broadcast_to(np.asarray(True if mask is None else raw(mask)), p.shape)
            found = memory.load(Value(np.where(inside, p.data, 256), p.element))
            return Value(np.where(inside, found, np.asarray(other, found.dtype)).astype(found.dtype))

        def store(p, v, mask=None):
            kind = p.element
            memory.store(p, v.to(kind) if isinstance(v, Value) and v.data.dtype.kind == "f" else v, mask)

        def atomic_cas(p, expected, new):
            if memory.load(p) == expected:
                memory.store(p, new)

        def atomic_add(p, added, sem, scope):
            found = memory.load(p)
            memory.store(p, found + added.data)
            return Value(found)

        def associative_scan(x, axis, combine):
            assert combine.__name__ == "add"
            return Value(np.cumsum(x.data, axis, x.data.dtype))

        def allocate(kind, shape, layout):
            if isinstance(layout, str):
                return Barriers(shape[0]) if len(shape) > 1 else Barrier()
            return Shared(np.zeros(shape, kind.numpy))

        def specialize(functions, warps, registers):
            consumer, producer = functions
            current = greenlet.getcurrent()
            self._spawn(current.rank, current.pid, *producer)
            consumer[0](*consumer[1])

        def broadcast(*inputs):
            arrays = np.broadcast_arrays(*(x.data for x in inputs))
            return tuple(Value(array, x.element) for array, x in zip(arrays, inputs, strict=True))

        def layout(*anything):
            return None

        def shape_of(shape):
            return [int(n) for n in shape]

        return types.SimpleNamespace(
            allocate_shared_memory=allocate,
            associative_scan=associative_scan,
            arange=lambda start, end, layout=None: Value(np.arange(start, end, dtype=np.int32)),
            atomic_add=atomic_add,
            atomic_cas=atomic_cas,
            broadcast=broadcast,
            constexpr=lambda x: x,
            convert_layout=lambda x, layout: x,
            fma=lambda a, b, c: a * b + c,
            full=lambda shape, x, kind, layout=None: Value(np.full(shape_of(shape), x, kind.numpy)),
            join=lambda a, b: Value(np.stack([a.data, b.data], -1)),
            load=load,
            max=reduce(np.max),
            min=reduce(np.min),
            permute=lambda x, order: Value(x.data.transpose(order)),
            program_id=lambda axis: Value(np.int32(greenlet.getcurrent().pid)),
            reshape=lambda x, shape: Value(x.data.reshape(shape)),
            split=lambda x: (Value(x.data[..., 0]), Value(x.data[..., 1])),
            static_range=range,
            store=store,
            sum=reduce(np.sum),
            tuple=tuple,
            warp_specialize=specialize,
            where=where,
            zeros=lambda shape, kind, layout=None: Value(np.zeros(shape_of(shape), kind.numpy)),
            rsqrt=value(lambda x: 1 / np.sqrt(x)),
            **{name: value(getattr(np, name)) for name in ("exp", "exp2", "log", "log2", "sqrt", "minimum", "maximum")},
            **{
                name: layout
                for name in ("SliceLayout", "BlockedLayout", "NVMMADistributedLayout", "DotOperandLayout", "SwizzledSharedLayout")
            },
            bfloat16=None,  # numpy has none
            **{np.dtype(kind.numpy).name: kind for kind in (FLOAT16, FLOAT32, INT16, INT32, INT64)},
        )


# --- launches -------------------------------------------------------------------------------------------------------------------


class Peers:
    """Stands in for ``engine.kernel.peers.Peers``: buffers of all ranks in the machine's memory."""

    def __init__(self, memory: Memory, shard: Shard, buffers: list):
        """buffers: a list that all ranks share, empty at first."""
        self.memory, self.shard, self.buffers = memory, shard, buffers

    def allocate(self, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.buffers:
            self.buffers += [int(self.memory.put(np.zeros(words, np.int64)).data) for _ in range(self.shard.ranks)]
        start = self.buffers[self.shard.rank]
        return torch.from_numpy(self.memory.bytes)[start : start + 8 * words].view(torch.int64), torch.tensor(self.buffers)


class EmulatedPath(GluonPath):
    """The fast path on a CPU; ``decode`` only notes the launch for ``run_together``."""

    def compile(self, plan):
        return types.SimpleNamespace(_init_handles=lambda: None)

    def decode(self, plan, first_token: int, position: int) -> None:
        self.launched = plan, self._arguments(first_token, position)


def run_together(machine: Machine, paths: list[EmulatedPath]) -> None:
    """Run the launches noted by ``paths``, one per rank. Tensors outside the machine's memory are copied there and back."""
    memory, copies = machine.memory, {}
    start, end = memory.bytes.ctypes.data, memory.end

    def pointer(tensor: torch.Tensor) -> Value:
        inside = tensor.data_ptr() - start
        if 0 <= inside < len(memory.bytes):
            return Value(np.int64(inside), TYPES[tensor.numpy().dtype])
        if tensor.data_ptr() not in copies:
            copies[tensor.data_ptr()] = tensor, memory.put(tensor.numpy())
        return copies[tensor.data_ptr()][1]

    def argument(x):
        if isinstance(x, torch.Tensor):
            return pointer(x)
        if isinstance(x, int):
            return Value(np.int32(x))
        return Descriptor(memory.array(pointer(x.base), x.base.numel()).reshape(x.shape), tuple(x.block_shape))

    machine.run([(plan.ctas, (*map(argument, arguments), plan)) for plan, arguments in (path.launched for path in paths)])
    for tensor, place in copies.values():
        tensor.copy_(torch.from_numpy(memory.array(place, tensor.shape)))
    memory.end = end
