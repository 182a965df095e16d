"""`python -m launcher.compile_modules FOLDER`, in the compiler's environment: sources in, extension modules out."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

from pool.compiled import MODULES, ROOT

_OPTIONS = ("--config-file=", "--ignore-missing-imports", "--follow-imports=silent")


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-compile-") as name:
        work = Path(name)
        shutil.copytree(ROOT / "pool", work / "pool", ignore=shutil.ignore_patterns("__pycache__"))
        os.chdir(work)
        # Names of files within the group's one library, and nothing of where they lie, go into the result.
        files = [module.replace(".", os.sep) + ".py" for module in MODULES]
        os.environ.setdefault("CFLAGS", "-g0")
        extensions = mypycify([*_OPTIONS, *files], opt_level="2", debug_level="0")
        command = build_ext(Distribution({"name": "sluice-gateway", "ext_modules": extensions}))
        command.build_lib = str(target)
        command.build_temp = str(work / "objects")
        command.ensure_finalized()
        command.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
