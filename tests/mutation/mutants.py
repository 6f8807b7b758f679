"""Changes of the code, one at a time: an operator, a comparison, a condition, a number or a jump is another.

No file is changed. A process takes a mutant in by giving the functions of a module that it has imported their
changed code, so nothing is imported again and other modules need not know.
"""

from __future__ import annotations

import ast
import gc
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "cqueue/protocol/*.py",
    "cqueue/store/packs.py",
    "dispatcher/execution/delivery.py",
    "dispatcher/execution/settlement_writer.py",
)
"""Where a wrong decision loses or doubles a message."""

SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.FloorDiv,),
}

Place = tuple[str, int]
"""Qualified name and first line of a function."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change.

    Attributes:
        module: path of the file, from the root of the tree.
        digest: of the file's text, shortened; a result holds for this text only.
        function: name of the function, with its class.
        line: the first line of what is changed; `last_line` the last.
        body: first and last line of the function.
        node: number of the node in the walk through its module; `variant` which change of the node.
        what: the change, and what it is made to.
    """

    module: str
    digest: str
    function: str
    line: int
    last_line: int
    body: tuple[int, int]
    node: int
    variant: int
    what: str

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What tells a mutant from all others."""
        return self.module, self.digest, self.node, self.variant


class _Nodes(ast.NodeVisitor):
    """The nodes of function bodies in order, each with its function; without annotations and docstrings."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.AST, str, tuple[int, int]]] = []
        self._names: list[str] = []
        self._body: tuple[int, int] | None = None

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self._body = self._body, (node.body[0].lineno, node.end_lineno or node.lineno)
        self._names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._names.pop()
        self._body = outer

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """The words of an error are no decision."""

    def generic_visit(self, node: ast.AST) -> None:
        if self._body is not None:
            self.found.append((node, ".".join(self._names), self._body))
        super().generic_visit(node)


def _nodes(tree: ast.Module) -> list[tuple[ast.AST, str, tuple[int, int]]]:
    nodes = _Nodes()
    nodes.visit(tree)
    return nodes.found


def _changes(node: ast.AST) -> list[tuple[str, Callable[[], None]]]:
    """The changes that can be made to a node, and what makes each in place."""
    found: list[tuple[str, Callable[[], None]]] = []
    match node:
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                found += [(swap.__name__, partial(ops.__setitem__, at, swap())) for swap in _swaps(op)]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op):
            found = [(swap.__name__, partial(setattr, node, "op", swap())) for swap in _swaps(op)]
        case ast.If() | ast.IfExp():
            ways = {"never": False, "always": True}
            found = [
                (way, partial(setattr, node, "test", ast.Constant(is_so))) for way, is_so in ways.items()
            ]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            twice = ast.UnaryOp(ast.Not(), operand)
            found = [("without not", partial(setattr, node, "operand", twice))]
        case ast.Constant(value=bool() as value):
            found = [("the opposite", partial(setattr, node, "value", not value))]
        case ast.Constant(value=int() as value):
            found = [("one more", partial(setattr, node, "value", value + 1))]
        case ast.Continue() | ast.Break():
            found = [("left out", partial(setattr, node, "__class__", ast.Pass))]
    return found


def _swaps(op: ast.AST) -> tuple[type[ast.AST], ...]:
    return SWAPS.get(type(op), ())


def module_paths() -> list[Path]:
    """The modules that are changed, in order."""
    return sorted(path for pattern in MODULES for path in ROOT.glob(pattern))


@cache
def digest_of(*paths: Path) -> str:
    """What tells the text of files from other texts."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a module."""
    tree, digest = ast.parse(path.read_text(encoding="utf-8")), digest_of(path)
    around = {part: whole for whole in ast.walk(tree) for part in ast.iter_child_nodes(whole)}
    for number, (node, function, body) in enumerate(_nodes(tree)):
        changed = node.test if isinstance(node, ast.If | ast.IfExp) else node
        place = f" in {_words(around[node])}" if isinstance(node, ast.Constant) else ""
        for variant, (what, _) in enumerate(_changes(node)):
            yield Mutant(
                module=str(path.relative_to(ROOT)),
                digest=digest,
                function=function,
                line=changed.lineno,
                last_line=changed.end_lineno or changed.lineno,
                body=body,
                node=number,
                variant=variant,
                what=f"{what}: {_words(node)}{place}",
            )


def _words(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0]


def every_mutant() -> list[Mutant]:
    """All mutants of all modules, in an order that does not change."""
    return [mutant for path in module_paths() for mutant in mutants(path)]


class Functions:
    """The functions of this process, by the file they come from."""

    def __init__(self) -> None:
        self._of: defaultdict[str, list[FunctionType]] = defaultdict(list)
        real: dict[str, str] = {}  # a module of the dispatcher is reached through a link
        gc.unfreeze()  # what is frozen is not among the objects below
        for one in gc.get_objects():
            if isinstance(one, FunctionType):
                name = one.__code__.co_filename
                if name not in real:
                    real[name] = str(Path(name).resolve())
                self._of[real[name]].append(one)

    def take_in(self, mutant: Mutant) -> None:
        """Give functions the mutant's code.

        Raises:
            LookupError: no function of this process is another for it.
        """
        path = ROOT / mutant.module
        text = path.read_text(encoding="utf-8")
        as_is, tree = ast.parse(text), ast.parse(text)
        _changes(_nodes(tree)[mutant.node][0])[mutant.variant][1]()
        before = _codes(compile(as_is, str(path), "exec", dont_inherit=True))
        after = _codes(compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True))
        functions = self._of[str(path)]
        changed = 0
        for function in functions:
            place = function.__code__.co_qualname, function.__code__.co_firstlineno
            if place in after and after[place] != before[place]:
                function.__code__ = after[place]
                changed += 1
        if not changed:
            raise LookupError(f"nothing in this process is another for {mutant}")


def _codes(module: CodeType) -> dict[Place, CodeType]:
    """The code of all functions of a module, also of inner ones."""
    found: dict[Place, CodeType] = {}
    left = [module]
    while left:
        code = left.pop()
        found[code.co_qualname, code.co_firstlineno] = code
        left += [one for one in code.co_consts if isinstance(one, CodeType)]
    return found
