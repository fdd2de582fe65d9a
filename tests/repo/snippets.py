"""Run programs one after the other in one process, each as if it were a separate file."""

import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    for name in sys.argv[1:]:
        program = Path(name)
        os.chdir(program.parent)
        sys.argv[:] = [program.name]
        sys.path[0] = str(program.parent)
        try:
            runpy.run_path(str(program), run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise


if __name__ == "__main__":
    main()
