"""Mutation testing: python -m tests.mutation --mutants 300 --seed 1 --report FILE

Changes one operator, comparison, condition or number at a time in the modules whose decisions must be right,
and runs their tests and the simulator on each changed copy of the tree. A mutant that no check notices has
survived: either a test is missing, or the change changes nothing.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("cqueue/protocol/*.py", "cqueue/store/packs.py", "cqueue/store/ranges.py")
"""What is changed."""
UNIT = ("tests/unit/test_protocol_*.py", "tests/unit/test_packs.py", "tests/unit/test_derived_sends.py")
MORE = (
    "tests/unit/test_inspection.py",
    "tests/unit/test_disposition.py",
    "tests/unit/test_shards.py",
    "tests/unit/test_estimate.py",
    "tests/unit/test_state_machine.py",
    "tests/unit/test_consumer.py",
    "tests/unit/test_dead_letters.py",
    "tests/unit/test_find_and_cancel.py",
    "tests/conformance/test_store_packs.py",
    "tests/conformance/test_store_packs_rows.py",
    "tests/conformance/test_store_mutate.py",
)
LIMIT_S = 300.0
"""A check that takes longer has noticed the mutant: something goes on for ever."""

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


@dataclass(frozen=True)
class Mutant:
    """One change: the number of the node in its module's walk, and which change of that node."""

    module: str
    node: int
    variant: int
    line: int
    what: str


class _Nodes(ast.NodeVisitor):
    """The nodes of function bodies, in order; annotations, docstrings and defaults are left out."""

    def __init__(self) -> None:
        self.found: list[ast.AST] = []
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._depth += 1
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """The words of an error are no decision."""

    def generic_visit(self, node: ast.AST) -> None:
        if self._depth:
            self.found.append(node)
        super().generic_visit(node)


def _changes(node: ast.AST) -> list[str]:
    """Names of the changes that can be made to a node."""
    if isinstance(node, ast.Compare):
        return [type(swap).__name__ for op in node.ops[:1] for swap in (s() for s in SWAPS.get(type(op), ()))]
    if isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign):
        return [swap.__name__ for swap in SWAPS.get(type(node.op), ())]
    if isinstance(node, ast.If | ast.IfExp):
        return ["never", "always"]
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    is_number = isinstance(node, ast.Constant) and type(node.value) in {int, bool}
    is_jump = isinstance(node, ast.Continue | ast.Break)
    return ["without not"] * is_not + ["another constant"] * is_number + ["left out"] * is_jump


def _apply(node: ast.AST, variant: int) -> None:
    """Change a node in place."""
    if isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])][variant]()
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign):
        node.op = SWAPS[type(node.op)][variant]()
    elif isinstance(node, ast.UnaryOp):
        node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant):
        node.value = (not node.value) if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.Constant(bool(variant))


def mutants(paths: list[Path]) -> Iterator[Mutant]:
    """All mutants of some modules."""
    for path in paths:
        for number, node in enumerate(_nodes(ast.parse(path.read_text()))):
            for variant, what in enumerate(_changes(node)):
                text = ast.unparse(node).splitlines()[0]
                yield Mutant(str(path.relative_to(ROOT)), number, variant, node.lineno, f"{what}: {text}")


def _nodes(tree: ast.Module) -> list[ast.AST]:
    nodes = _Nodes()
    nodes.visit(tree)
    return nodes.found


def mutated(source: str, mutant: Mutant) -> str:
    """The module's source with the change."""
    tree = ast.parse(source)
    node = _nodes(tree)[mutant.node]
    if isinstance(node, ast.Continue | ast.Break):
        tree = _Replace(node).visit(tree)
    else:
        _apply(node, mutant.variant)
    return ast.unparse(ast.fix_missing_locations(tree))


class _Replace(ast.NodeTransformer):
    def __init__(self, gone: ast.AST) -> None:
        self._gone = gone

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.Pass() if node is self._gone else super().visit(node)


class Tree:
    """A copy of the tree, in which one mutant at a time is tried."""

    def __init__(self, folder: Path, schedules: int) -> None:
        self.folder = folder
        self._schedules = schedules
        ignored = shutil.ignore_patterns(".*", "__pycache__", "docs", "benchmarks", "spark")
        shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored, dirs_exist_ok=True)

    def checks(self) -> Iterator[list[str]]:
        """Commands, the quick ones first."""
        pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not cassandra", "-p", "no:cacheprovider"]
        for some in (UNIT, MORE):
            files = [str(path.relative_to(ROOT)) for name in some for path in sorted(ROOT.glob(name))]
            yield [*pytest, "-o", "timeout=60", *files]
        yield [sys.executable, "-m", "tests.simulation", "--schedules", str(self._schedules), "--seed", "1"]

    def try_out(self, mutant: Mutant | None) -> str | None:
        """The check that noticed a mutant; None if it has survived."""
        changed = None if mutant is None else self.folder / mutant.module
        source = "" if changed is None else changed.read_text()
        if changed is not None and mutant is not None:
            changed.write_text(mutated(source, mutant))
        try:
            for name, command in zip(("unit", "more", "simulator"), self.checks(), strict=True):
                if not self._passes(command):
                    return name
        finally:
            if changed is not None:
                changed.write_text(source)
        return None

    def _passes(self, command: list[str]) -> bool:
        env = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=env, capture_output=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def main() -> int:
    """Try mutants, write each result as it comes, and tell what survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--report", type=Path, default=Path("mutation.jsonl"), help="appended to; done ones are skipped"
    )
    asked = parser.parse_args()
    paths = sorted(path for pattern in MODULES for path in ROOT.glob(pattern))
    every = list(mutants(paths))
    chosen = random.Random(asked.seed).sample(every, min(asked.mutants, len(every)))
    known = (
        [json.loads(line) for line in asked.report.read_text().splitlines()] if asked.report.exists() else []
    )
    done = {(one["module"], one["node"], one["variant"]) for one in known}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.workers) as pool:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(asked.workers):
            trees.put(Tree(Path(folder) / str(number), asked.schedules))
        first = trees.get()
        if first.try_out(None) is not None:
            sys.exit("the checks fail without any mutant")
        trees.put(first)

        def attempt(mutant: Mutant) -> dict[str, object]:
            tree = trees.get()
            try:
                return asdict(mutant) | {"noticed_by": tree.try_out(mutant)}
            finally:
                trees.put(tree)

        left = [one for one in chosen if (one.module, one.node, one.variant) not in done]
        with asked.report.open("a") as report:
            for result in pool.map(attempt, left):
                report.write(json.dumps(result) + "\n")
                report.flush()
                known.append(result)
    return _tell(known, len(every))


def _tell(results: list[dict[str, object]], of: int) -> int:
    survivors = [result for result in results if result["noticed_by"] is None]
    counts = Counter(str(result["noticed_by"]) for result in results)
    for one in survivors:
        sys.stdout.write(f"survived: {one['module']}:{one['line']}: {one['what']}\n")
    share = 1 - len(survivors) / max(1, len(results))
    sys.stdout.write(f"{len(results)} of {of} mutants tried, {share:.1%} noticed; by check: {dict(counts)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
