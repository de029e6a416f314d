"""Which files of the cache this process wrote or read: what a snapshot of a run should hold.

In: a process in which torch has compiled, and its cache directory. Out: relative paths. torch records the keys of both
pickle caches (``torch.compiler.save_cache_artifacts``); loaded shared objects and generated modules are read from the
process itself, autotuning results lie beside the modules. It imports nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cache_tools import records


def used_entries(cache_dir: Path) -> frozenset[str]:
    """Cache files, relative to ``cache_dir``, that this process compiled or hit; empty where torch is not imported."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return frozenset()
    files: set[Path] = set()
    artifacts = torch.compiler.save_cache_artifacts()
    keys: dict[str, list[str]] = artifacts[1].artifacts if artifacts else {}
    for kind, folder in (("inductor", "fxgraph"), ("aot_autograd", "aotautograd")):
        for key in keys.get(kind, ()):
            files.update(_files_of(cache_dir, folder, key))
    for shared_object in loaded(cache_dir):
        stem = shared_object.name.partition(".")[0]
        files.update(shared_object.parent.glob(f"{stem}.*"))
    files.update(_generated_modules(cache_dir))
    found = {path.relative_to(cache_dir).as_posix() for path in files if path.is_file() and not path.is_symlink()}
    about = records.files_about(cache_dir, (key for group in keys.values() for key in group)) if found else frozenset()
    return frozenset(found | about)


def loaded(cache_dir: Path) -> set[Path]:
    """Shared objects of ``cache_dir`` that are mapped into this process."""
    root = str(cache_dir.resolve())
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if f"{root}/" in line}
    return {cache_dir / Path(path).relative_to(root) for path in paths if path.endswith(".so")}


def _files_of(cache_dir: Path, folder: str, key: str) -> Iterator[Path]:
    inner = (cache_dir / folder / key[1:3] / key) if folder == "fxgraph" else (cache_dir / folder / key)
    return inner.iterdir() if inner.is_dir() else iter(())


def _generated_modules(cache_dir: Path) -> Iterator[Path]:
    for module in list(sys.modules.values()):
        file: Any = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(f"{cache_dir}/"):
            path = Path(file)
            yield path
            yield from path.parent.glob("*.best_config")
